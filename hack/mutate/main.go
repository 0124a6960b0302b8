// Command mutate changes one thing in a package's code at a time and says which changes no test of it notices: what survives is a
// promise that is not tested, or a change that means nothing. It changes no file: the compiler is shown others instead, which hold
// all changes at once, and a variable of the environment says which one is made.
//
//	go run ./hack/mutate [-n 100] [-seed 1] [-tests ./elastic] ./elastic/barrier
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	n := flag.Int("n", 0, "how many changes, drawn at random; 0: all")
	seed := flag.Uint64("seed", 1, "of the draw")
	tests := flag.String("tests", "", "packages, with commas between them, whose tests count as well where the package's own notice nothing")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "mutate: name one package, such as ./elastic/barrier")
		os.Exit(2)
	}
	others := strings.FieldsFunc(*tests, func(r rune) bool { return r == ',' })
	if err := run(flag.Arg(0), others, *n, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// drawn are n of all changes, in their order.
func drawn(all []change, n int, seed uint64) []change {
	if n > 0 && n < len(all) {
		rand.New(rand.NewPCG(seed, seed)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:n]
		slices.SortFunc(all, func(a, b change) int { return a.id - b.id })
	}
	return all
}

func run(pkg string, others []string, n int, seed uint64) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	src, err := load(pkg)
	if err != nil {
		return err
	}
	overlay, err := src.written(dir)
	if err != nil {
		return err
	}
	var bins []*binary
	for i, p := range append([]string{pkg}, others...) {
		b, err := built(p, overlay, filepath.Join(dir, strconv.Itoa(i)+".test"))
		if err != nil {
			return err
		}
		bins = append(bins, b)
	}
	possible := src.changes()
	all := drawn(slices.Clone(possible), n, seed)
	counts := map[string]int{}
	for i, how := range tried(all, bins) {
		if c := all[i]; how != noticed {
			fmt.Printf("%s: %q instead of %q %s\n", c.at, c.now, c.was, how)
		}
		counts[how]++
	}
	fmt.Printf("%s: %d changes of %d: %d noticed, %d by a test that did not end, %d survived\n",
		pkg, len(all), len(possible), counts[noticed], counts[endless], counts[survived])
	return nil
}

const noticed, survived, endless = "was noticed", "survived", "had no end"

// tried says what tests make of each change.
func tried(all []change, bins []*binary) []string {
	out := make([]string, len(all))
	next := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				out[i] = survived
				for _, b := range bins {
					if out[i] = b.tries(all[i].id); out[i] != survived {
						break
					}
				}
			}
		})
	}
	for i := range all {
		if next <- i; i%50 == 49 {
			fmt.Fprintf(os.Stderr, "mutate: %d of %d\n", i+1, len(all))
		}
	}
	close(next)
	workers.Wait()
	return out
}

// binary is the tests of a package that was compiled with every change.
type binary struct {
	path, dir string
	stages    []stage // the quickest first: most changes are noticed at once
}

// stage is some tests, with each of its random tests at one seed or at all, and the time they may take.
type stage struct {
	tests, seed string
	limit       time.Duration
}

func built(pkg, overlay, path string) (*binary, error) {
	dir, err := filepath.Abs(pkg)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "test", "-c", "-o", path, "-overlay", overlay, "-vet=off", "-ldflags=-s -w", pkg).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s does not compile with all changes in it: %w\n%s", pkg, err, out)
	}
	b := &binary{path: path, dir: dir}
	for _, seed := range []string{"1", ""} {
		began := time.Now()
		out, err := b.command(context.Background(), 0, stage{tests: ".", seed: seed}, "-test.v").Output()
		if err != nil {
			return nil, fmt.Errorf("%s without a change: %w\n%s", pkg, err, out)
		}
		b.stages = append(b.stages, stages(string(out), seed, time.Since(began))...)
	}
	return b, nil
}

var passed = regexp.MustCompile(`(?m)^--- PASS: (\w+) \(([\d.]+)s\)`)

// stages puts the tests of a run in the order of the time they took: all that are quick together, then each of the others.
func stages(out, seed string, took time.Duration) []stage {
	limit := 20*time.Second + 5*took // others may need the machine
	times := map[string]time.Duration{}
	var quick []string
	for _, m := range passed.FindAllStringSubmatch(out, -1) {
		if times[m[1]], _ = time.ParseDuration(m[2] + "s"); times[m[1]] < 300*time.Millisecond {
			quick = append(quick, m[1])
			delete(times, m[1])
		}
	}
	all := []stage{{"^(" + strings.Join(quick, "|") + ")$", seed, limit}}
	for _, name := range slices.SortedFunc(maps.Keys(times), func(a, b string) int { return cmp.Compare(times[a], times[b]) }) {
		all = append(all, stage{"^" + name + "$", seed, limit})
	}
	return all
}

// command runs a stage with one change made; with 0 none is. A change that makes the tests ask for memory without end gets an error.
func (b *binary) command(ctx context.Context, change int, s stage, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 6000000; exec "$0" "$@"`,
		b.path, "-test.failfast", "-test.timeout=0", "-test.run=" + s.tests}, args...)...)
	c.Dir = b.dir
	c.Env = append(os.Environ(), variable+"="+strconv.Itoa(change), "HOLDFAST_SEED="+s.seed)
	return c
}

func (b *binary) tries(change int) string {
	for _, s := range b.stages {
		ctx, cancel := context.WithTimeout(context.Background(), s.limit)
		err := b.command(ctx, change, s).Run()
		late := errors.Is(ctx.Err(), context.DeadlineExceeded)
		cancel()
		switch {
		case late:
			return endless
		case err != nil:
			return noticed
		}
	}
	return survived
}

// written puts what the compiler is shown under dir, without the changes that it refuses, and returns the overlay that says so.
func (s *source) written(dir string) (string, error) {
	overlay := filepath.Join(dir, "overlay.json")
	for {
		replace := map[string]string{filepath.Join(s.dir, "mutate_all.go"): filepath.Join(dir, "all.go")}
		if err := os.WriteFile(filepath.Join(dir, "all.go"), []byte(helpers(s.name)), 0o600); err != nil {
			return "", err
		}
		for i, f := range s.files {
			instead := filepath.Join(dir, fmt.Sprintf("file%d.go", i))
			replace[f.path] = instead
			if err := os.WriteFile(instead, f.schema(), 0o600); err != nil {
				return "", err
			}
		}
		list, err := json.Marshal(map[string]any{"Replace": replace})
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(overlay, list, 0o600); err != nil {
			return "", err
		}
		out, err := exec.Command("go", "build", "-gcflags=-e", "-overlay", overlay, s.path).CombinedOutput()
		if err == nil {
			return overlay, nil
		}
		if !s.drop(string(out)) {
			return "", fmt.Errorf("%s with all changes: %w\n%s", s.path, err, out)
		}
	}
}
