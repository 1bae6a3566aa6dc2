"""The proxy: gathers sealed ciphertexts, closes studies, adds the noise, and releases once.

Other packages import only `precomputed`, `study_files` and `worker`.
"""
