"""The infrastructure that all roles share: files, locks, stored keys, worker processes and HTTP.

Other packages may import every module.
"""
