// Package python carries the Python files that Holdfast puts on PYTHONPATH in a training container: the
// client that a script may import, the site hook and the standby that it turns into. It promises files
// that need nothing but the standard library of Python 3.10 or newer. See docs/python.md.
package python

import "embed"

// Files holds what is installed, at the paths that it is installed under.
//
//go:embed holdfast/*.py _holdfast_*.py holdfast_standby.py sitecustomize.py
var Files embed.FS
