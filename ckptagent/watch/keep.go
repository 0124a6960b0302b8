//go:build linux

package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"holdfast.dev/holdfast/internal/protocol"
)

// Evidence is where files about all ranks of a pod are kept, for users.
type Evidence struct {
	// Dir is an empty folder.
	Dir string
	// Generation is that of the ranks.
	Generation int64
	// Base is the global rank of local rank 0, Ranks the number of local ranks.
	Base, Ranks int
	// Bytes is the most bytes of all files of one rank.
	Bytes int64
}

// backendName is what a backend must be called to be part of a file's name: the rank's user writes the file of groups.
var backendName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// Keep looks at ranks as Look does, and writes for each local rank RANK
//
//	rank-RANK.stack.txt         what its process and its main thread are in, and its Python stack; also of a rank that does not answer
//	rank-RANK.BACKEND.json      the record of the backend's collectives, as torch's worker server answers; .cut.json: only its beginning
//	BACKEND.rank-RANK           the same as a pickle for torchfrtrace
func (w *Watcher) Keep(ranks []Rank, world int, to Evidence) error {
	ranks = slices.Clone(ranks)
	for i := range ranks {
		ranks[i].RAS = "" // it was asked by the look before
	}
	looks := w.look(ranks, world, &to)
	var errs error
	for local := range to.Ranks {
		if slices.ContainsFunc(looks, func(l protocol.Look) bool { return l.Local == local }) {
			continue
		}
		why := "it has no process"
		if slices.ContainsFunc(ranks, func(r Rank) bool { return r.Local == local && r.Process.Alive() }) {
			why = fmt.Sprintf("the look at it did not end within %s", Limit)
		}
		errs = errors.Join(errs, to.put(to.stackName(local), func(out io.Writer) error {
			_, err := fmt.Fprintf(out, "%s\nno answer: %s\n", to.title(local), why)
			return err
		}))
	}
	return errs
}

func (to *Evidence) stackName(local int) string {
	return fmt.Sprintf("rank-%d.stack.txt", to.Base+local)
}

func (to *Evidence) title(local int) string {
	return fmt.Sprintf("rank %d (local rank %d), generation %d, %s", to.Base+local, local, to.Generation, time.Now().UTC().Format(time.RFC3339))
}

// put writes a file that has its name only once it is complete.
func (to *Evidence) put(name string, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(to.Dir, ".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err = fill(f); err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(to.Dir, name))
}

// taken is what a rank has answered.
type taken struct {
	asked   bool
	stack   []byte
	records []string // a line for each record
}

// write writes the file of a rank's stack.
func (to *Evidence) write(l *protocol.Look, t *taken) {
	state := "unknown"
	if l.State != 0 {
		state = string(l.State)
	}
	lines := []string{
		to.title(l.Local),
		fmt.Sprintf("main thread: process %d, state %s, waits in %s; the rank has %d processes", l.PID, state, orNothing(l.Native), l.Processes),
	}
	if len(t.records) == 0 && t.asked {
		t.records = []string{"record of collectives: no answer"}
	}
	lines = append(lines, t.records...)
	switch {
	case len(t.stack) > 0:
		lines = append(lines, "", string(t.stack))
	case l.Stack == protocol.StackWithheld:
		lines = append(lines, "Python stack: no answer; the main thread takes no signal")
	default:
		lines = append(lines, "Python stack: none; the process has joined no process group of torch, or its interpreter has ended")
	}
	_ = to.put(to.stackName(l.Local), func(out io.Writer) error {
		_, err := io.WriteString(out, strings.TrimRight(strings.Join(lines, "\n"), "\n")+"\n")
		return err
	})
}

func orNothing(native string) string {
	if native == "" {
		return "nothing that the kernel names"
	}
	return native
}

// keep writes the records of a rank, and returns a line for each.
func (r *recorder) keep(ctx context.Context, to *Evidence, local int) (lines []string) {
	backends := backendsOf(r.groups)
	left := (to.Bytes - mostStack) / int64(len(backends)) // of which a pickle gets a third: it has each name once
	for _, backend := range backends {
		if backend == "nccl" { // as in looks
			line, entries := r.keepOne(ctx, to, local, left, "dump_nccl_trace_json", backend, nil)
			if lines = append(lines, line); entries != 0 {
				continue
			}
			backend = "nccl2"
		}
		line, _ := r.keepOne(ctx, to, local, left, "fr_trace_json", backend, url.Values{"backend": {backend}})
		lines = append(lines, line)
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// keepOne writes one record. entries is the number of its entries; -1: unknown.
func (r *recorder) keepOne(ctx context.Context, to *Evidence, local int, most int64, handler, backend string, query url.Values,
) (line string, entries int) {
	if !backendName.MatchString(backend) {
		return "", -1
	}
	body, err := r.open(ctx, handler, query)
	if err != nil || body == nil {
		return "", 0
	}
	defer body.Close()
	rank, name, most := to.Base+local, "", most*2/3
	part := fmt.Sprintf(".%s-%d.json", backend, rank)
	var cut error
	err = to.put(part, func(out io.Writer) error {
		n, err := io.Copy(out, io.LimitReader(body, most))
		if cut = err; err == nil && n == most {
			cut = fmt.Errorf("only its first %d bytes", most)
		}
		return nil
	})
	if err != nil {
		return fmt.Sprintf("record of %s: %v", backend, err), -1
	}
	entries = -1
	if cut == nil {
		entries, cut = r.pickle(to, part, backend, rank, most/2)
	}
	switch {
	case entries == 0:
		_ = os.Remove(filepath.Join(to.Dir, part))
		_ = os.Remove(filepath.Join(to.Dir, pickleName(backend, rank)))
		return "", 0
	case entries > 0:
		name = fmt.Sprintf("rank-%d.%s.json", rank, backend)
		line = fmt.Sprintf("record of %s: %d operations in %s, and in %s for torchfrtrace", backend, entries, name, pickleName(backend, rank))
	default:
		name = fmt.Sprintf("rank-%d.%s.cut.json", rank, backend)
		line = fmt.Sprintf("record of %s: not whole, in %s: %v", backend, name, cut)
	}
	_ = os.Rename(filepath.Join(to.Dir, part), filepath.Join(to.Dir, name))
	return line, entries
}

func pickleName(backend string, rank int) string { return fmt.Sprintf("%s.rank-%d", backend, rank) }

// pickle writes a record as a pickle.
func (r *recorder) pickle(to *Evidence, from, backend string, rank int, most int64) (entries int, err error) {
	in, err := os.Open(filepath.Join(to.Dir, from))
	if err != nil {
		return -1, err
	}
	defer in.Close()
	err = to.put(pickleName(backend, rank), func(out io.Writer) (err error) {
		p := pickler{out: bufio.NewWriter(&bounded{out, most}), groups: r.groups, backend: backend, world: r.world}
		entries, err = p.pickle(bufio.NewReader(in))
		return err
	})
	if err != nil {
		return -1, err
	}
	return entries, nil
}

// bounded is a writer that takes at most left bytes.
type bounded struct {
	out  io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errors.New("its pickle would be too large")
	}
	return b.out.Write(p)
}
