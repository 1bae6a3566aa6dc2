"""The audit: plays the distinguishing game against the releases themselves, and asks what it can refute.

`releases` makes what the data user sees, `neighbours` the data sets to be told apart, `bound` and `checks`
draw conclusions, `game` puts them together, `commands` is `dpdpca audit`. What an audit can and cannot show:
docs/audit.md.
"""
