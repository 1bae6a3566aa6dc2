"""What noise a promise needs: accounting, sensitivities, mechanisms, exact samplers."""
