package elastic

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestLifetimes: the table in the comment of State lists the lifetime of each of its fields.
func TestLifetimes(t *testing.T) {
	source, err := os.ReadFile("state.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^//\t\| [^|]*\| ([^|]*)\|$`).FindAllStringSubmatch(string(source), -1)
	notified := map[string]bool{}
	for _, row := range rows[1:] {
		for _, word := range strings.FieldsFunc(row[1], func(r rune) bool { return strings.ContainsRune(" ,;.[](){}", r) }) {
			notified[word] = true
		}
	}
	for i := range reflect.TypeFor[State]().NumField() {
		name := reflect.TypeFor[State]().Field(i).Name
		if !notified[name] {
			t.Errorf("the table does not say how long %s lives", name)
		}
	}
}

// rec returns the present record.
func (s *State) rec() *Record {
	r := s.Snapshot()
	return &r
}

// durable returns the durable steps in the record, newest first.
func (r *Record) durable() []StoredStep {
	out := []StoredStep(nil)
	for _, d := range []*StoredStep{r.Durable, r.Older} {
		if d != nil {
			out = append(out, *d)
		}
	}
	return append(out, r.Kept...)
}
