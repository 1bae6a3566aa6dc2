"""From a release to components, and back to the owners."""
