// Package python embeds the Python files that Holdfast puts on PYTHONPATH in a training container: the client that a
// training script may import, the site hook, and the standby. The hook, the standby and `import holdfast` need only the
// standard library of Python 3.10 or newer. docs/python.md describes all of them.
package python

import (
	"embed"
	"strconv"
)

// Files are the installed files, at their paths in the installation.
//
//go:embed holdfast/*.py _holdfast_*.py holdfast_check.py holdfast_standby.py sitecustomize.py
var Files embed.FS

// IndexArgs are the arguments of the interpreter that writes the index for stock torch from the rank files of so many ranks; files is their
// common path up to the rank's number, installed the folder of Files.
func IndexArgs(installed, files string, ranks int) []string {
	const program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from holdfast._index import main; main()"
	return []string{"-I", "-S", "-c", program, installed, files, strconv.Itoa(ranks)}
}
