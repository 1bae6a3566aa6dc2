"""A data owner: its keys, its data files, its consent, and how its share is sent.

Other packages import only `accounts`, `agent`, `home`, `records`, `share_chunks` and `upload`.
"""
