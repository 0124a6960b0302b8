//go:build linux

package watch

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"holdfast.dev/holdfast/internal/protocol"
)

const (
	// mostAnswer is the most bytes of a recorder's answer: its 2,000 entries take about 1 MB.
	mostAnswer = 16 << 20
	// mostSizes is the most bytes of an operation's sizes.
	mostSizes = 64
	// mostBackends bounds the questions to one rank.
	mostBackends = 4
)

// recorder is torch's worker server in one rank.
type recorder struct {
	client http.Client
	groups []group
	world  int
}

func newRecorder(socket string, groups []group, world int) *recorder {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &recorder{
		client: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
		groups: groups,
		world:  world,
	}
}

// looks returns the groups that the recorder knows: those with an open operation first, then those that were used last.
func (r *recorder) looks(ctx context.Context) ([]protocol.GroupLook, error) {
	var all []*tally
	for _, backend := range backendsOf(r.groups) {
		var found []*tally
		var err error
		if backend == "nccl" { // torch's own record of it, or from 2.15 on that of its successor
			found, err = r.ask(ctx, "dump_nccl_trace_json", "nccl", nil)
			if err == nil && len(found) == 0 {
				found, err = r.ask(ctx, "fr_trace_json", "nccl2", url.Values{"backend": {"nccl2"}})
			}
		} else {
			found, err = r.ask(ctx, "fr_trace_json", backend, url.Values{"backend": {backend}})
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortStableFunc(all, func(a, b *tally) int {
		return cmp.Or(cmp.Compare(b.isOpen(), a.isOpen()), cmp.Compare(b.at, a.at))
	})
	var out []protocol.GroupLook
	for _, t := range all[:min(len(all), protocol.MaxLookGroups)] {
		out = append(out, t.look(r.world))
	}
	return out, nil
}

// open asks for one record. A server that does not know the question has no such record: nil.
func (r *recorder) open(ctx context.Context, handler string, query url.Values) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://rank/handler/"+handler+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	answer.Body.Close()
	if answer.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	return nil, fmt.Errorf("asking a rank's recorder for %s: %s", handler, answer.Status)
}

// ask asks for one record and reads it.
func (r *recorder) ask(ctx context.Context, handler, backend string, query url.Values) ([]*tally, error) {
	body, err := r.open(ctx, handler, query)
	if err != nil || body == nil {
		return nil, err
	}
	defer body.Close()
	rec := record{backend: backend, groups: r.groups, byID: map[int]*tally{}}
	if err := rec.read(bufio.NewReader(io.LimitReader(body, mostAnswer))); err != nil {
		return nil, fmt.Errorf("reading a rank's recorder: %w", err)
	}
	return rec.tallies(), nil
}

// entry is an operation in a record.
type entry struct {
	ID         int64     `json:"record_id"`
	Group      int       `json:"pg_id"`
	Names      []string  `json:"process_group"` // name and description
	Collective int64     `json:"collective_seq_id"`
	P2P        int64     `json:"p2p_seq_id"`
	Op         int64     `json:"op_id"`
	Name       string    `json:"profiling_name"`
	Sizes      [][]int64 `json:"input_sizes"`
	Types      []string  `json:"input_dtypes"`
	State      string    `json:"state"`
	Retired    bool      `json:"retired"`
	IsP2P      bool      `json:"is_p2p"`
	StartedAt  int64     `json:"time_discovered_started_ns"`
	CreatedAt  int64     `json:"time_created_ns"`
}

// status is a group's newest operations in a record.
type status struct {
	Enqueued  string `json:"last_enqueued_collective"`
	Completed string `json:"last_completed_collective"`
}

// config is a group in a record.
type config struct {
	Name  string `json:"name"`
	Ranks string `json:"ranks"` // [0, 1]
}

// record is one backend's record, as it is read.
type record struct {
	backend string
	groups  []group
	byID    map[int]*tally
	config  map[string]config
	status  map[string]status
}

// read reads a record entry by entry: it may have a megabyte.
func (r *record) read(from io.Reader) error {
	d := json.NewDecoder(from)
	if err := delim(d, '{'); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch key {
		case "entries":
			err = r.readEntries(d)
		case "pg_config":
			err = d.Decode(&r.config)
		case "pg_status":
			err = d.Decode(&r.status)
		default:
			err = d.Decode(&ignored{})
		}
		if err != nil {
			return err
		}
	}
	return delim(d, '}')
}

// ignored is a value of any type that is not kept.
type ignored struct{}

func (*ignored) UnmarshalJSON([]byte) error { return nil }

func delim(d *json.Decoder, want json.Delim) error {
	if got, err := d.Token(); err != nil {
		return err
	} else if got != want {
		return fmt.Errorf("%v where %v was expected", got, want)
	}
	return nil
}

func (r *record) readEntries(d *json.Decoder) error {
	if err := delim(d, '['); err != nil {
		return err
	}
	for d.More() {
		var e entry
		if err := d.Decode(&e); err != nil {
			return err
		}
		if len(e.Names) == 0 {
			return errors.New("an entry without a group")
		}
		t := r.byID[e.Group]
		if t == nil {
			if len(r.byID) > 8*protocol.MaxLookGroups {
				return errors.New("too many groups")
			}
			t = &tally{name: e.Names[0], backend: r.backend}
			r.byID[e.Group] = t
		}
		t.add(e)
	}
	return delim(d, ']')
}

// tallies returns the groups of a record that has been read.
func (r *record) tallies() []*tally {
	r.addQuiet()
	for _, t := range r.byID {
		t.members = members(r.groups, t.name, t.backend)
		if c, ok := r.config[t.name]; t.members == nil && ok && c.Name == t.name && t.name != "" {
			t.members = ranges(strings.Trim(strings.ReplaceAll(c.Ranks, " ", ""), "[]"))
		}
	}
	var out []*tally
	named := map[string]bool{}
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(r.byID))) {
		t := r.byID[id]
		if !named[t.name] { // an older one of that name was destroyed
			named[t.name] = true
			out = append(out, t)
		}
	}
	slices.Reverse(out)
	return out
}

// addQuiet adds groups without an entry: those of which a record has only numbers, and those of which it has nothing, because no operation
// was enqueued. Which they are is known if groups are numbered in the order in which they were made, and no entry contradicts that.
func (r *record) addQuiet() {
	var names []string
	for _, g := range r.groups {
		if g.uses(r.backend) {
			names = append(names, g.name)
		}
	}
	for id, t := range r.byID {
		if id < 0 || id >= len(names) || names[id] != t.name {
			return
		}
	}
	for id, name := range names {
		if r.byID[id] != nil {
			continue
		}
		s := r.status[strconv.Itoa(id)]
		enqueued, _ := strconv.ParseInt(s.Enqueued, 10, 64) // -1: none
		completed, _ := strconv.ParseInt(s.Completed, 10, 64)
		r.byID[id] = &tally{name: name, backend: r.backend, quiet: &numbers{enqueued: max(enqueued, 0), completed: max(completed, 0)}}
	}
}
