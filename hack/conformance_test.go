package hack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// interpreter replaces each Python. The Pythons in ABSENT have another version than their name says. A torch version in NOTORCH cannot be
// installed.
const interpreter = `#!/bin/bash
case "$1 $2" in
"-c "*) [[ " $ABSENT " != *" ${0##*/} "* ]] ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python3" ;;
"-m pip") [[ " $* " != *" torch==$NOTORCH "* ]] ;;
"-m unittest") [ -z "$FAIL" ] ;;
esac
`

// TestConformanceIsOfWhatWasTried: pairs of versions that were left out are reported. A run without the oldest pair, the newest pair or a
// named pair fails.
func TestConformanceIsOfWhatWasTried(t *testing.T) {
	all := []string{"3.10-torch2.4.1", "3.10-torch2.14.1", "3.13-torch2.15.0", "3.14-torch2.15.0"}
	for name, c := range map[string]struct {
		args                  []string
		absent, noTorch, fail string
		green                 bool
		ran                   []string
		says                  string
	}{
		"all":               {green: true, ran: all},
		"one in between":    {absent: "python3.13", green: true, ran: []string{all[0], all[1], all[3]}, says: "LEFT OUT: 3.13/2.15.0: there is no python3.13"},
		"the newest Python": {absent: "python3.14", ran: all[:3], says: "FAILED: 3.14/2.15.0: was not tried, and must be"},
		"the oldest torch":  {noTorch: "2.4.1", ran: all[1:], says: "FAILED: 3.10/2.4.1: was not tried, and must be"},
		"none":              {absent: "python3.10 python3.13 python3.14", says: "LEFT OUT: 3.10/2.14.1: there is no python3.10"},
		"a named one":       {args: []string{"3.13/2.15.0", "3.14/2.15.0"}, absent: "python3.13", ran: all[3:], says: "FAILED: 3.13/2.15.0: was not tried, and must be"},
		"named ones":        {args: []string{"3.10/2.14.1"}, green: true, ran: all[1:2]},
		"tests fail":        {fail: "1", ran: all, says: "FAILED: 3.13/2.15.0: ckptagent/python/tests"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, "conformance.sh", map[string]string{
				"ckptagent/python/none": "", "bin/python3.10": interpreter, "bin/python3.13": interpreter, "bin/python3.14": interpreter,
				"hack/gotest.sh": "#!/bin/bash\nvenv=${HOLDFAST_CONFORMANCE_PYTHON%/bin/python3}\necho \"${venv##*/}\" >>ran\n",
			})
			cmd := exec.Command("bash", append([]string{filepath.Join(dir, "hack/conformance.sh")}, c.args...)...)
			cmd.Env = append(os.Environ(), "ABSENT="+c.absent, "NOTORCH="+c.noTorch, "FAIL="+c.fail, "PYENV_ROOT="+dir, "HOLDFAST_CONFORMANCE_DIR="+filepath.Join(dir, "venvs"),
				"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.green || !strings.Contains(string(out), c.says) {
				t.Errorf("it ended with %v, and said\n%s", err, out)
			}
			ran, _ := os.ReadFile(filepath.Join(dir, "ran"))
			if got := strings.Fields(string(ran)); strings.Join(got, " ") != strings.Join(c.ran, " ") {
				t.Errorf("%v ran, not %v", got, c.ran)
			}
		})
	}
}
