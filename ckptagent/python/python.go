// Package python contains the Python files that Holdfast puts on PYTHONPATH in a training container: the client that
// a script may import, the site hook and the standby. It promises that they need only the standard library of Python
// 3.10 or newer. See docs/python.md.
package python

import (
	"embed"
	"strconv"
)

// Files holds what is installed, at the paths that it is installed under.
//
//go:embed holdfast/*.py _holdfast_*.py holdfast_standby.py sitecustomize.py
var Files embed.FS

// IndexArgs are those of an interpreter that names to stock torch what lies in the files of so many ranks, which are called files up to the
// rank; installed is the folder that the Files lie in.
func IndexArgs(installed, files string, ranks int) []string {
	const program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from holdfast._index import main; main()"
	return []string{"-I", "-S", "-c", program, installed, files, strconv.Itoa(ranks)}
}
