"""A data owner: its keys, its data files, what it consents to, and how its share travels."""
