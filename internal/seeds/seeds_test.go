package seeds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fake is a test that can fail.
type fake struct {
	testing.TB
	failed bool
	said   []string
	after  []func()
}

func (f *fake) Helper()          {}
func (f *fake) Failed() bool     { return f.failed }
func (f *fake) Cleanup(g func()) { f.after = append(f.after, g) }
func (f *fake) Logf(s string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(s, args...))
}

func TestAll(t *testing.T) {
	f := &fake{}
	first, second := slices.Collect(All(f, int64(30))), slices.Collect(All(f, int64(30)))
	if len(first) != 34 || first[29] != 29 || first[30] <= first[29] || first[33] <= first[32] || second[30] == first[30] {
		t.Errorf("%d, then %d", first, second)
	}
	t.Setenv(variable, "12345")
	if got := slices.Collect(All(f, uint64(30))); !slices.Equal(got, []uint64{12345}) || !One() {
		t.Errorf("%d", got)
	}
}

func TestFresh(t *testing.T) {
	f := &fake{}
	if one, other := Fresh(f), Fresh(f); one == other {
		t.Errorf("%d twice", one)
	}
	t.Setenv(variable, "12345")
	f = &fake{}
	if got := Fresh(f); got != 12345 {
		t.Errorf("%d", got)
	}
	f.after[0]()
	if len(f.said) > 0 {
		t.Errorf("a test that passed says %q", f.said)
	}
	f.failed = true
	f.after[0]()
	if want := []string{"failed at seed 12345: HOLDFAST_SEED=12345 tries it alone"}; !slices.Equal(f.said, want) {
		t.Errorf("%q", f.said)
	}
}

func TestTheFirstSeedThatFailsIsNamed(t *testing.T) {
	const want = "failed at seed 7: HOLDFAST_SEED=7 tries it alone"
	for name, ends := range map[string]bool{"it goes on": false, "it ends there": true} {
		f := &fake{}
		func() {
			defer func() { _ = recover() }()
			for seed := range All(f, int64(30)) {
				if f.failed = f.failed || seed == 7; f.failed && ends {
					panic("as FailNow does")
				}
			}
		}()
		for _, g := range f.after {
			g()
		}
		if got := strings.Join(f.said, "; "); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
