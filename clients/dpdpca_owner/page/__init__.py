"""The agent's page: what the agent does, shown to a person in a browser on this machine.

The page decides nothing. A study is approved, a request is declined and the policy is changed only by a form
that a person sends. Reading a page changes nothing.
"""
