"""From records to the exact integer sums of a share."""
