"""What studies have cost these records, and what is left of the budget."""
