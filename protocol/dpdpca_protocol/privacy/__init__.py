"""The noise that a privacy promise needs: accounting, sensitivities, mechanisms and exact samplers."""
