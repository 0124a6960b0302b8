//go:build linux

package watch

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"net"
)

// TestPickle has Python read the pickle of a record, and compares it with the JSON.
func TestPickle(t *testing.T) {
	const compare = `
import json, pickle, sys
want, got = json.load(open(sys.argv[1])), pickle.load(open(sys.argv[2], "rb"))
print(got["pg_config"])
del want["pg_config"], got["pg_config"]
assert want == got, (want, got)
`
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3")
	}
	numbers := `{"pg_config":{"0":{"name":"0","desc":"d","ranks":"[0]"}},"n":[0,-1,2147483648,-9223372036854775808,1.5,1e300,true,false,null,"é",[],{}]}`
	gloo, err := os.ReadFile("testdata/gloo-rank0.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, config string }{
		"numbers": {numbers, "{'0': {'name': '0', 'desc': 'd', 'ranks': '[0]'}}"},
		"gloo": {string(gloo), "{'0': {'desc': 'default_pg', 'name': '0', 'ranks': '[0, 1, 2, 3]'}, " +
			"'1': {'desc': 'undefined', 'name': '1', 'ranks': '[0, 1]'}}"},
	} {
		var out bytes.Buffer
		p := pickler{
			out: bufio.NewWriter(&out), backend: "gloo", world: 4,
			groups: parseGroups([]byte("0\tcpu:gloo\t0-3\n1\tgloo\t0,1\n2\tgloo\t0-9\n3\tnccl\t0,1\n")),
		}
		if _, err := p.pickle(strings.NewReader(c.text)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		files := []string{filepath.Join(t.TempDir(), "j"), filepath.Join(t.TempDir(), "p")}
		for i, content := range [][]byte{[]byte(c.text), out.Bytes()} {
			if err := os.WriteFile(files[i], content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := exec.Command("python3", "-c", compare, files[0], files[1]).CombinedOutput()
		if err != nil || strings.TrimSpace(string(got)) != c.config {
			t.Errorf("%s: %v: %s", name, err, got)
		}
	}
	for _, text := range []string{"", "[]", "{", gigantic, `{"a":1}{`[:6]} {
		p := pickler{out: bufio.NewWriter(&bytes.Buffer{})}
		if _, err := p.pickle(strings.NewReader(text)); err == nil {
			t.Errorf("no error for %.20q", text)
		}
	}
}

// gigantic is nested too deep.
var gigantic = `{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + "}"

// TestRecordsAreBounded: a record that is longer than its bound is cut, and its name says so; a backend that is no name is left out.
func TestRecordsAreBounded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(out, answer("", strings.Split(strings.Repeat(op(1, 0, 1, 0, 1, "gloo:barrier", "scheduled", "")+"|", 1000), "|")[:1000]...))
	}))
	server.Listener = l
	server.Start()
	defer server.Close()
	groups := parseGroups([]byte("0\tcpu:gloo,cuda:../../x\t0-3\n"))
	for size, want := range map[int64]string{10 << 20: "[gloo.rank-5 rank-5.gloo.json]", mostStack + 100_000: "[rank-5.gloo.cut.json]"} {
		to := &Evidence{Dir: t.TempDir(), Base: 4, Ranks: 2, Bytes: size}
		lines := newRecorder(socket, groups, 8).keep(t.Context(), to, 1)
		names, total := []string{}, int64(0)
		files, err := os.ReadDir(to.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			info, err := f.Info()
			if err != nil {
				t.Fatal(err)
			}
			names, total = append(names, f.Name()), total+info.Size()
		}
		if fmt.Sprint(names) != want || total > size || len(lines) != 1 {
			t.Errorf("%d bytes: %v, %d bytes, %q", size, names, total, lines)
		}
	}
}

// TestRanksWithoutAnswer: each rank has a file, which says why there is nothing more.
func TestRanksWithoutAnswer(t *testing.T) {
	dir, sleep := t.TempDir(), run(t, "sleep", "600")
	to := Evidence{Dir: dir, Base: 6, Ranks: 2, Bytes: 1 << 20}
	if err := New().Keep([]Rank{{Local: 0, Process: sleep}}, 8, to); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"rank-6.stack.txt": "Python stack: none", "rank-7.stack.txt": "no answer: it has no process"} {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %v: %s", name, err, raw)
		}
	}
}
