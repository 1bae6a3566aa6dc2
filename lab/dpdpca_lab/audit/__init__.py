"""The audit: plays the distinguishing game against real releases, and tries to refute the privacy claim.

`releases` produces what the data user sees, and `neighbours` the data sets to distinguish. `bound` and
`checks` draw conclusions, `game` combines everything, and `commands` is `dpdpca audit`. docs/audit.md
explains what an audit can show and what it cannot.
"""
