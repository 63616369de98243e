"""A storm over real servers: workers write, everything fails, and afterwards what is stored is held against what was
acknowledged. See docs/reliability.md.
"""
