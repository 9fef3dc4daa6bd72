"""From run folders to tables, figures and reports."""

import experiments  # noqa: F401  # first, as it decides where modules are looked for
