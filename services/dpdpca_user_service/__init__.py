"""The data user's service: it holds the secret keys, runs each study to its end, and serves models.

Other packages import nothing from this one.
"""
