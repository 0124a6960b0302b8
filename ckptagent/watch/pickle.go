//go:build linux

package watch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// mostDepth bounds how deep values of a recorder's answer are nested, memoBytes the strings that a pickle has only once.
const mostDepth, memoBytes = 16, 64

// pickler writes a recorder's answer as a pickle (protocol 2), which torch's torchfrtrace reads. A record without the members of its
// groups, such as gloo's, gets those that the site hook has noted.
type pickler struct {
	out     *bufio.Writer
	memo    map[string]byte
	groups  []group
	backend string
	world   int
	// entries counts those of the record.
	entries int
}

// pickle reads a whole answer and returns the number of its entries.
func (p *pickler) pickle(from io.Reader) (entries int, err error) {
	p.memo = map[string]byte{}
	d := json.NewDecoder(from)
	d.UseNumber()
	p.raw("\x80\x02}(")
	if err := delim(d, '{'); err != nil {
		return 0, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return 0, err
		}
		p.text(key.(string))
		if key == "pg_config" {
			err = p.config(d)
		} else {
			err = p.value(d, 1)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := delim(d, '}'); err != nil {
		return 0, err
	}
	p.raw("u.")
	return p.entries, p.out.Flush()
}

// config writes the groups: as the record has them, or as the site hook has noted them if the record does not name them.
func (p *pickler) config(d *json.Decoder) error {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return err
	}
	var have map[string]json.RawMessage
	if err := json.Unmarshal(raw, &have); err != nil {
		return err
	}
	if _, unnamed := have[""]; len(have) > 0 && !unnamed {
		again := json.NewDecoder(bytes.NewReader(raw))
		again.UseNumber()
		return p.value(again, 1)
	}
	noted := map[string]map[string]string{}
	for _, g := range p.groups {
		if !g.uses(p.backend) || !within(g.ranks, p.world) {
			continue
		}
		desc := "undefined"
		if g.name == "0" {
			desc = "default_pg"
		}
		noted[g.name] = map[string]string{"name": g.name, "desc": desc, "ranks": listed(g, p.world)}
	}
	text, err := json.Marshal(noted)
	if err != nil {
		return err
	}
	return p.value(json.NewDecoder(bytes.NewReader(text)), 1)
}

// listed returns the members of a group as torch's record has them: [0, 1].
func listed(g group, world int) string {
	var out []string
	for _, r := range g.ranks {
		for i := 0; i < r.Count && len(out) < world; i++ {
			out = append(out, strconv.Itoa(r.First+i*r.Step))
		}
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// value writes the next value.
func (p *pickler) value(d *json.Decoder, depth int) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if depth > mostDepth {
		return errors.New("values are nested too deep")
	}
	switch t := t.(type) {
	case json.Delim:
		return p.nested(d, t, depth)
	case string:
		p.text(t)
	case bool:
		p.raw(map[bool]string{true: "\x88", false: "\x89"}[t])
	case json.Number:
		return p.number(t)
	case nil:
		p.raw("N")
	default:
		return fmt.Errorf("a value %v", t)
	}
	return nil
}

func (p *pickler) nested(d *json.Decoder, open json.Delim, depth int) error {
	start, end := "](", "e"
	if open == '{' {
		start, end = "}(", "u"
	}
	p.raw(start)
	for d.More() {
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			if p.text(key.(string)); key == "record_id" {
				p.entries++
			}
		}
		if err := p.value(d, depth+1); err != nil {
			return err
		}
	}
	p.raw(end)
	_, err := d.Token()
	return err
}

func (p *pickler) raw(opcodes string) { _, _ = p.out.WriteString(opcodes) }

// text writes a string, or refers to the one that was written before.
func (p *pickler) text(s string) {
	if n, ok := p.memo[s]; ok {
		_, _ = p.out.Write([]byte{'h', n})
		return
	}
	_, _ = p.out.Write(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(s))))
	p.raw(s)
	if n := len(p.memo); n <= math.MaxUint8 && len(s) <= memoBytes {
		p.memo[s] = byte(n)
		_, _ = p.out.Write([]byte{'q', byte(n)})
	}
}

func (p *pickler) number(text json.Number) error {
	if n, err := text.Int64(); err == nil {
		b := []byte{'J'}
		if int64(int32(n)) == n {
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		} else {
			b = binary.LittleEndian.AppendUint64([]byte{0x8a, 8}, uint64(n))
		}
		_, _ = p.out.Write(b)
		return nil
	}
	f, err := text.Float64()
	if err != nil {
		return err
	}
	_, _ = p.out.Write(binary.BigEndian.AppendUint64([]byte{'G'}, math.Float64bits(f)))
	return nil
}
