"""What every role stands on outside the protocol: files, locks, keys at rest, worker processes, HTTP.

Other packages may import every module.
"""
