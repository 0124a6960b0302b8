package hang

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var record = flag.Bool("record", false, "write what was seen into "+results)

// results has one line for each silence.
const results = "testdata/silences.jsonl"

// row is what was seen of one silence.
type row struct {
	Part string `json:"part"`
	Name string `json:"name"`
	What string `json:"what"`
	// Seen are the verdicts in their order, Restarts the number of restarts.
	Seen     []seen `json:"seen"`
	Restarts int    `json:"restarts"`
	// Result is how the job ended.
	Result string `json:"result"`
}

// seen is one verdict. After is the time since the last step in seconds.
type seen struct {
	Verdict string  `json:"verdict"`
	After   float64 `json:"after"`
	Ends    bool    `json:"ends,omitempty"`
	Text    string  `json:"text"`
}

// taken notes a verdict, unless it is the one before.
func (r *row) taken(verdict, text string, after time.Duration) {
	if n := len(r.Seen); n == 0 || r.Seen[n-1].Verdict != verdict {
		r.Seen = append(r.Seen, seen{Verdict: verdict, After: math.Round(after.Seconds()*10) / 10, Text: text})
	}
}

// ended notes a restart and its cause.
func (r *row) ended(code, text string, after time.Duration) {
	r.Restarts++
	r.Seen = append(r.Seen, seen{Verdict: code, After: math.Round(after.Seconds()*10) / 10, Ends: true, Text: text})
}

func (r *row) String() string {
	out := &strings.Builder{}
	for _, s := range r.Seen {
		ends := ""
		if s.Ends {
			ends = ", ends"
		}
		fmt.Fprintf(out, " | %s after %.1f s%s: %s", s.Verdict, s.After, ends, s.Text)
	}
	return out.String()
}

// writing lets one test at a time replace its line.
var writing sync.Mutex

// write says what was seen, and with -record keeps it in place of what was seen before.
func (r *row) write(t *testing.T) {
	t.Helper()
	t.Logf("%s: %d restarts, %s%s", r.Name, r.Restarts, r.Result, r)
	if !*record || t.Failed() {
		return
	}
	writing.Lock()
	defer writing.Unlock()
	rows := append(slices.DeleteFunc(readRows(t), func(old row) bool { return old.Part == r.Part && old.Name == r.Name }), *r)
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Name, b.Name)) })
	out := &strings.Builder{}
	lines := json.NewEncoder(out)
	for _, row := range rows {
		if err := lines.Encode(row); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(results, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readRows(t *testing.T) (rows []row) {
	t.Helper()
	file, err := os.Open(results)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		rows = append(rows, r)
	}
	return rows
}
