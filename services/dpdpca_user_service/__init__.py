"""The data user's service: holds the secret key, drives each study to its end, serves models.

Other packages import nothing from it.
"""
