package stock

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
)

// stateOf is a rank's data as the client lays it out; its leaves' bytes lie in space.
func stateOf(layout, tree string, objects ...string) []byte {
	const end = 1 << 12
	b := make([]byte, end)
	copy(b, headMagic)
	for i := headBytes; i < end; i++ {
		b[i] = byte(i)
	}
	var all []byte
	for _, o := range objects {
		all = append(binary.LittleEndian.AppendUint64(all, uint64(len(o))), o...)
	}
	at := end
	for i, part := range [][]byte{[]byte(layout), []byte(tree), all} {
		binary.LittleEndian.PutUint64(b[8+16*i:], uint64(at))
		binary.LittleEndian.PutUint64(b[16+16*i:], uint64(len(part)))
		b = append(b, part...)
		at += len(part)
	}
	return b
}

// layoutOf is that of rows that lie 512 bytes apart; tensors have prefixes of 300 bytes.
func layoutOf(rows ...string) string {
	prefixes := make([]string, len(rows))
	for i, r := range rows {
		rows[i] = strings.ReplaceAll(r, "AT", fmt.Sprint(512*(i+1)))
		if prefixes[i] = "0"; strings.Contains(r, "torch") || strings.Contains(r, "dtensor") {
			prefixes[i] = "300"
		}
	}
	return `{"v":1,"tensors":[` + strings.Join(rows, ",") + `],"prefix":[` + strings.Join(prefixes, ",") + `]}`
}

func indexOf(t *testing.T, states ...[]byte) (*Index, error) {
	t.Helper()
	x := New()
	for _, s := range states {
		if err := x.Add(bytes.NewReader(s), int64(len(s))); err != nil {
			return nil, err
		}
	}
	return x, x.Check()
}

var files = Files{Rank: func(rank int) string { return fmt.Sprintf("../rank-%d", rank) }, Values: "values", Data: 4096}

// written is what stock torch would be told: name -> "file offset length" of each part.
func written(t *testing.T, x *Index) (parts map[string][]string, paths map[string]string) {
	t.Helper()
	var b bytes.Buffer
	if err := x.WriteMetadata(&b, files); err != nil {
		t.Fatal(err)
	}
	r := reader{in: bytes.NewReader(b.Bytes())}
	v, err := r.unpickle()
	if err != nil || r.in.Len() > 0 {
		t.Fatalf("%v, %d bytes are left", err, r.in.Len())
	}
	fields := *v.(*made).state.(*map[any]any)
	parts, paths = map[string][]string{}, map[string]string{}
	for k, v := range *fields["planner_data"].(*map[any]any) {
		paths[k.(string)] = fmt.Sprintf("%#v", []any(v.(tupleOf)))
	}
	described := *fields["state_dict_metadata"].(*map[any]any)
	for name := range described {
		parts[name.(string)] = nil
	}
	stored := *fields["storage_data"].(*map[any]any)
	for k, v := range stored {
		at := k.(index)
		where := *v.(*made).state.(*map[any]any)
		file, offset := where["relative_path"].(string), where["offset"].(int64)
		said := "values"
		if file != "values" {
			said = strings.TrimSuffix(fmt.Sprint(file, " ", strings.TrimPrefix(at.offset, "torch.Size"), " ", offset-files.Data, " ", where["length"]), " ")
		}
		parts[at.fqn] = append(parts[at.fqn], said)
		slices.Sort(parts[at.fqn])
	}
	n := 0
	for _, e := range x.entries {
		n += len(e.parts)
		if e.dtype == "" && e.value.n > 0 {
			n++
		}
	}
	if len(stored) != n || len(paths) != len(described) || len(parts) != len(described) {
		t.Errorf("%d parts are stored of %d names, %d described, %d have paths; there are %d parts", len(stored), len(parts), len(described), len(paths), n)
	}
	return parts, paths
}

const (
	whole  = `["torch","float32",[2,3],AT,24,null]`
	bytes5 = `["bytes","",[5],AT,5,null]`
)

func shard(at, rows int, placement string) string {
	return fmt.Sprintf(`["dtensor","float32",[%d,2],AT,%d,{"strides":null,"shape":[4,2],"stride":[2,1],"mesh":[2],"dims":null,"at":[%d],"placements":[%s]}]`, rows, 8*rows, at, placement)
}

func TestNamesAndPlaces(t *testing.T) {
	x, err := indexOf(t,
		stateOf(layoutOf(whole, shard(0, 2, `["shard",0]`)), `{"m":{"d":[["w",{"T":0}],["l",{"l":[{"T":0},1]}],["s",{"T":1}],[7,true],["e",{"d":[]}]]},"u":0,"__rng__":{"d":[["t",1]]}}`),
		stateOf(layoutOf(whole, shard(1, 2, `["shard",0]`)), `{"m":{"d":[["w",{"T":0}],["l",{"l":[{"T":0},1]}],["s",{"T":1}],[7,true],["e",{"d":[]}]]},"u":1,"__rng__":{"d":[["t",1]]}}`))
	if err != nil {
		t.Fatal(err)
	}
	parts, paths := written(t, x)
	want := map[string][]string{
		"m.w": {"../rank-0 ((0 0)) 212 324"}, "m.l.0": {"../rank-0 ((0 0)) 212 324"}, "m.s": {"../rank-0 ((0 0)) 724 316", "../rank-1 ((2 0)) 724 316"},
		"m.l.1": {"values"}, "m.7": {"values"}, "u": {"values"}, "rank-0.u": {"values"}, "rank-1.u": {"values"}, "rank-0.__rng__.t": {"values"}, "rank-1.__rng__.t": {"values"},
	}
	if !maps.EqualFunc(parts, want, slices.Equal) {
		t.Errorf("parts are %v\nwant %v", parts, want)
	}
	for name, want := range map[string]string{"m.l.0": `[]interface {}{"m", "l", 0}`, "m.7": `[]interface {}{"m", "7"}`, "rank-1.u": `[]interface {}{"rank-1", "u"}`} {
		if paths[name] != want {
			t.Errorf("the path of %s is %s, want %s", name, paths[name], want)
		}
	}
	if n := bytes.Count(x.Values(), []byte(legacyHead)); n != 6 {
		t.Errorf("there are %d values, want 6: what ranks share once", n)
	}
}

// TestValuesOfThreeRanks: those of ranks that were alike before another came are told, too, and lie there once.
func TestValuesOfThreeRanks(t *testing.T) {
	of := func(v string) []byte { return stateOf("{\"v\": 1, \"tensors\": [ ]}", "{ \"v\" :\t"+v+" }\n") }
	x, err := indexOf(t, of("5"), of("5"), of("6"), of("5"))
	if err != nil {
		t.Fatal(err)
	}
	parts, _ := written(t, x)
	if got := strings.Join(slices.Sorted(maps.Keys(parts)), " "); got != "rank-0.v rank-1.v rank-2.v rank-3.v v" {
		t.Errorf("names are %s", got)
	}
	if n := bytes.Count(x.Values(), []byte(legacyHead)); n != 3 && n != 2 {
		t.Errorf("there are %d values", n)
	}
	if a, b := x.by[own(1, x.entries[0].path)].value, x.entries[0].value; a != b {
		t.Errorf("rank 1 has %v, all have %v", a, b)
	}
}

// TestManyNames: what is written in several goes is one pickle.
func TestManyNames(t *testing.T) {
	x, err := indexOf(t, stateOfMany(3000, 0, 2, true), stateOfMany(3000, 1, 2, true))
	if err != nil {
		t.Fatal(err)
	}
	parts, _ := written(t, x)
	if got := parts["model.layers.2999.attention.projection.weight"]; len(parts) != 3000 || len(got) != 2 || got[1] != "../rank-1 ((128 0)) 724 1324" {
		t.Errorf("%d names, parts of the last are %v", len(parts), got)
	}
}

// show is a value that was read, as text.
func show(v any) string {
	switch v := v.(type) {
	case *made:
		return v.class + show(v.args)
	case tupleOf:
		var b []string
		for _, x := range v {
			b = append(b, show(x))
		}
		return "(" + strings.Join(b, " ") + ")"
	case *[]any:
		return "[" + show(tupleOf(*v)) + "]"
	case *map[any]any:
		return fmt.Sprint("{", len(*v), "}")
	case string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprint(v)
}

// TestValues: each kind, as what reads them is to make it; the client's tests have torch do so.
func TestValues(t *testing.T) {
	rows := []string{`["bytes","",[2],AT,2,null]`, `["bytearray","",[1],AT,1,null]`, `["array","d",[1],AT,8,null]`, `["numpy","<i2",[1,2],AT,4,null]`, `["torch","float32",[2,1],AT,8,null]`, `["torch","float8_e5m2",[2],AT,2,null]`}
	for tree, want := range map[string]string{
		`null`: "<nil>", `true`: "true", `false`: "false", `-7`: "-7", `3000000000`: "3000000000", `1180591620717411303424`: "[0 0 0 0 0 0 0 0 64]",
		`-1180591620717411303424`: "[0 0 0 0 0 0 0 0 192]", `-36893488147419103232`: "[0 0 0 0 0 0 0 0 254]", `0.1`: "0.1", `{"f":"nan"}`: "NaN", `{"f":"-inf"}`: "-Inf", `"a\u00e9\n"`: `"aé\n"`,
		`{"l":[1,{"l":[]},{"t":[2]}]}`: "[(1 [()] (2))]", `{"t":[{"d":[[1,2],["a",3]]},{"o":[["k",1]]}]}`: `({2} collections.OrderedDict())`, `{"T":0}`: "[0 1]",
		`{"T":1}`: "builtins.bytearray([0])", `{"T":2}`: `array.array("d" [0 1 2 3 4 5 6 7])`, `{"T":3}`: `numpy.ndarray((1 2) "<i2" builtins.bytearray([0 1 2 3]))`,
		`{"p":0}`:           "pickle.loads([120])",
		`{"t":[{"T":4}]}`:   `(torch._utils._rebuild_tensor_v2(storage<nil> 0 (2 1) (1 1) false collections.OrderedDict()))`,
		`{"t":[{"T":5},1]}`: `(torch._utils._rebuild_tensor_v3(storage<nil> 0 (2) (1) false collections.OrderedDict() "torch.float8_e5m2") 1)`,
	} {
		x, err := indexOf(t, stateOf(layoutOf(slices.Clone(rows)...), `{"v":`+tree+`}`, "x"))
		if err != nil {
			t.Errorf("%s: %v", tree, err)
			continue
		}
		r := reader{in: bytes.NewReader(x.Values()[len(legacyHead):])}
		got, err := r.unpickle()
		keys, more := r.unpickle()
		if err := errors.Join(err, more); err != nil || show(got) != want {
			t.Errorf("%s is %s, %v; want %s", tree, show(got), err, want)
		}
		if n := strings.Count(tree, `"T":4`) + strings.Count(tree, `"T":5`); len(*keys.(*[]any)) != n || n == 0 && r.in.Len() > 0 || n > 0 && r.in.Len() != 8+map[bool]int{true: 8, false: 2}[strings.Contains(tree, `"T":4`)] {
			t.Errorf("%s: storages are %s, %d bytes follow", tree, show(keys), r.in.Len())
		}
	}
}

func TestOptimizers(t *testing.T) {
	names := func(tree string) []string {
		t.Helper()
		x, err := indexOf(t, stateOf(layoutOf(whole), `{"o":`+tree+`}`))
		if err != nil {
			return []string{err.Error()}
		}
		_, paths := written(t, x)
		return slices.Sorted(maps.Keys(paths))
	}
	group := func(params string) string { return `{"d":[["lr",0.1],["params",{"l":[` + params + `]}]]}` }
	zero := func(of string) string {
		return `{"d":[["optim",{"d":[["state",{"d":[[0,{"d":[["m",{"T":0}]]}]]}],["param_groups",{"l":[` + group("0") + `]}]]}],` +
			`["groups",{"l":[{"d":[["lr",0.1]]}]}],["part",{"l":[]}],["of",{"l":[{"l":[3,{"l":[` + of + `]}]}]}]]}`
	}
	for tree, want := range map[string]string{
		`{"d":[["state",{"d":[[0,{"d":[["m",{"T":0}]]}]]}],["param_groups",{"l":[` + group("0") + `]}]]}`:                                         "o.param_groups.0.lr o.param_groups.0.params o.state.0.m",
		`{"d":[["state",{"d":[[0,{"d":[["m",{"T":0}]]}]]}],["param_groups",{"l":[{"d":[["params",{"l":[0]}],["param_names",{"l":["a.w"]}]]}]}]]}`: "o.param_groups.0.param_names o.param_groups.0.params o.state.a.w.m",
		`{"d":[["state",{"d":[[3,{"d":[["m",{"T":0}]]}]]}],["param_groups",{"l":[{"d":[["params",{"l":[0]}],["param_names",{"l":["a.w"]}]]}]}]]}`: "in none of its param_groups",
		zero("2"): "o.param_groups.0.lr o.param_groups.0.params o.state.2.m",
		zero(""):  "ZeroRedundancyOptimizer is not known",
	} {
		if got := strings.Join(names(tree), " "); !strings.Contains(got, want) {
			t.Errorf("%s\nhas %s, want %s", tree, got, want)
		}
	}
}

func TestPlans(t *testing.T) {
	tableOf := `{"paths":{"m.w":["m","w"],"n.0":["n",0]},"tensors":{"m.w":["float32",[4,3],[[[0,0],[2,3]],[[2,0],[2,3]]]]},"values":["n.0"]}`
	at := func(rank int, value string) []byte {
		rows := []string{whole, bytes5, fmt.Sprintf(`["bytes","",[%d],AT,%d,null]`, len(tableOf), len(tableOf))}
		b := stateOf(layoutOf(rows...), fmt.Sprintf(`{"__dcp__":{"d":[["v",1],["table",{"T":2}],["held",{"l":[{"l":["m.w",{"l":[%d,0]},{"T":0}]},{"l":["n.0",null,{"T":1}]}]}]]}}`, 2*rank))
		copy(b[1024:], value)
		copy(b[1536:], tableOf)
		return b
	}
	x, err := indexOf(t, at(0, "alike"), at(1, "alike"))
	if err != nil {
		t.Fatal(err)
	}
	parts, paths := written(t, x)
	want := map[string][]string{"m.w": {"../rank-0 ((0 0)) 212 324", "../rank-1 ((2 0)) 212 324"}, "n.0": {"../rank-0 <nil> 1024 5"}}
	if !maps.EqualFunc(parts, want, slices.Equal) || paths["n.0"] != `[]interface {}{"n", 0}` {
		t.Errorf("parts are %v, paths %v", parts, paths)
	}
	if x, err = indexOf(t, at(0, "alike"), at(1, "other")); err != nil {
		t.Fatal(err)
	}
	if parts, _ = written(t, x); !slices.Equal(parts["rank-1.n.0"], []string{"../rank-1 <nil> 1024 5"}) || !slices.Equal(parts["rank-0.n.0"], parts["n.0"]) {
		t.Errorf("values that differ: %v", parts)
	}
	if _, err = indexOf(t, at(0, "alike")); !errors.Is(err, ErrNotNamed) || !strings.Contains(err.Error(), "m.w: the ranks hold 6 elements of a tensor of 12") {
		t.Errorf("one rank of two: %v", err)
	}
}

// hugeObject is a state whose object says that it is as long as can be.
func hugeObject() []byte {
	b := stateOf(layoutOf(whole), `{}`, "x")
	binary.LittleEndian.PutUint64(b[len(b)-9:], 1<<64-1)
	return b
}

// TestWhatCannotBeNamed: each has its reason.
func TestWhatCannotBeNamed(t *testing.T) {
	one := func(layout, tree string, objects ...string) [][]byte {
		return [][]byte{stateOf(layout, tree, objects...)}
	}
	two := func(a, b string) [][]byte {
		return append(one(layoutOf(a), `{"w":{"T":0}}`), one(layoutOf(b), `{"w":{"T":0}}`)...)
	}
	for want, states := range map[string][][]byte{
		"was not written by the client":                    {bytes.Repeat([]byte{1}, 100)},
		"points past its end":                              {stateOf("{}", "{}")[:4097]},
		"a client that writes nothing before":              one(`{"v":1,"tensors":[["torch","float32",[2],64,8,null]]}`, `{"w":{"T":0}}`),
		"begins outside of a rank's state":                 one(`{"v":1,"tensors":[["torch","float32",[2],300,8,null]],"prefix":[300]}`, `{"w":{"T":0}}`),
		"lies outside of a rank's state":                   one(`{"v":1,"tensors":[["torch","float32",[2],99999999,8,null]],"prefix":[300]}`, `{"w":{"T":0}}`),
		"layout has a version":                             one(`{"v":2,"tensors":[]}`, `{}`),
		"row of its layout is not known here: [\"opaque\"": one(layoutOf(`["opaque","float32",[2],AT,8,null]`), `{}`),
		"[\"torch\",\"qint8\"":                             one(layoutOf(`["torch","qint8",[2],AT,2,null]`), `{}`),
		"[\"torch\",\"qint8\",[0]":                         one(layoutOf(`["torch","qint8",[0],AT,0,null]`), `{}`),
		`["torch","float32\ncposix`:                        one(layoutOf(`["torch","float32\ncposix\nsystem\n(S'id'\ntR0ctorch\nfloat32",[0],AT,0,null]`), `{"w":{"T":0}}`),
		"a number of 5000 digits":                          one(layoutOf(whole), `{"v":`+strings.Repeat("1", 5000)+`}`),
		"ZeroRedundancyOptimizer is not known":             one(layoutOf(whole), `{"a":`+zeroOf(150_000)+`,"b":`+zeroOf(150_000)+`}`),
		"names and shapes have more than":                  one(layoutOf(whole), `{"`+strings.Repeat("x", 1<<20)+`":{"d":[`+manyEmpty(20)+`]}}`),
		"more than 4096 objects":                           one(layoutOf(whole), `{}`, make([]string, 5000)...),
		"[\"torch\",\"float32\",[2],512,9":                 one(layoutOf(`["torch","float32",[2],AT,9,null]`), `{}`),
		"[\"numpy\",\"|O\"":                                one(layoutOf(`["numpy","|O",[1],AT,8,null]`), `{}`),
		"float that is none":                               one(layoutOf(whole), `{"v":{"f":"one"}}`),
		"object of 18446744073709551615 bytes":             {hugeObject()},
		"names tensor 5 of 1":                              one(layoutOf(whole), `{"v":{"T":5}}`),
		"names object 0 of 0":                              one(layoutOf(whole), `{"v":{"p":0}}`),
		"tag that is not known":                            one(layoutOf(whole), `{"v":{"x":5}}`),
		"no Unicode":                                       one(layoutOf(whole), `{"v":"\ud800"}`),
		"dict has keys that are no text":                   one(layoutOf(whole), `{"v":{"d":[[{"t":[1]},2]]}}`),
		"two parts of the state have this name":            one(layoutOf(whole), `{"v":{"d":[[1,2],["1",2]]}}`),
		"both called a.b":                                  one(layoutOf(whole), `{"a.b":1,"a":{"d":[["b",2]]}}`),
		"a tuple has sharded tensors":                      one(layoutOf(shard(0, 2, `["shard",0]`)), `{"v":{"t":[{"T":0}]}}`),
		"w: the ranks hold 4 elements of a tensor of 8":    one(layoutOf(shard(0, 2, `["shard",0]`)), `{"w":{"T":0}}`),
		"to be reduced over ranks":                         one(layoutOf(shard(0, 4, `["partial","sum"]`)), `{"w":{"T":0}}`),
		"where its layout says 2 of dimension 0":           one(layoutOf(shard(0, 3, `["shard",0]`)), `{"w":{"T":0}}`),
		"of several places of it":                          two(shard(0, 2, `["strided",0,2]`), shard(1, 2, `["strided",0,2]`)),
		"shard's layout is not known":                      one(layoutOf(shard(2, 2, `["shard",0]`)), `{"w":{"T":0}}`),
		"some ranks saved by holdfast.dcp":                 append(one(layoutOf(whole), `{"w":{"T":0}}`), one(layoutOf(whole), `{"__dcp__":1}`)...),
		"what holdfast.dcp saved is not known":             one(layoutOf(whole), `{"__dcp__":1}`),
		"there is no rank":                                 nil,
		"more than 8388608 bytes":                          one(layoutOf(whole), `{"v":{"p":0},"w":{"p":1}}`, strings.Repeat("x", 5<<20), strings.Repeat("y", 5<<20)),
		"more than 200000 values":                          one(layoutOf(whole), `{"v":{"l":[`+strings.Repeat("0,", 200_000)+`0]}}`),
		"its tree is no JSON":                              one(layoutOf(whole), `{"v":`),
	} {
		_, err := indexOf(t, states...)
		if !errors.Is(err, ErrNotNamed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := indexOf(t, one(layoutOf(whole), `{"v":{"f":"`+strings.Repeat("x", 1<<20)+`"},"w":"`+strings.Repeat("é", 1<<20)+`\ud800"}`)...); err == nil || len(err.Error()) > 1000 {
		t.Errorf("a reason of %d bytes", len(err.Error()))
	}
}

// zeroOf is the state of a ZeroRedundancyOptimizer of so many parameters, of which this rank has none.
func zeroOf(params int) string {
	return fmt.Sprintf(`{"d":[["optim",{"d":[["state",{"d":[]}],["param_groups",{"l":[{"d":[["params",{"l":[]}]]}]}]]}],["groups",{"l":[{"d":[["lr",1]]}]}],["part",{"l":[]}],["of",{"l":[{"l":[%d,{"l":[]}]}]}]]}`, params)
}

// manyEmpty are items of a dict that are empty dicts.
func manyEmpty(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`["%d",{"d":[]}]`, i))
	}
	return strings.Join(all, ",")
}

// TestPlansThatCannotBeNamed: a planner may plan anything, and a table may say anything.
func TestPlansThatCannotBeNamed(t *testing.T) {
	plan := func(table string, items ...string) []byte {
		rows, held := []string{fmt.Sprintf(`["bytes","",[%d],AT,%d,null]`, len(table), len(table))}, []string{}
		for i, item := range items {
			shape, where, _ := strings.Cut(item, " at ")
			name, shape, _ := strings.Cut(shape, " ")
			n := int64(4)
			for _, d := range strings.Split(strings.Trim(shape, "[]"), ",") {
				var size int64
				_, _ = fmt.Sscan(d, &size)
				n *= size
			}
			rows = append(rows, fmt.Sprintf(`["torch","float32",%s,AT,%d,null]`, shape, n))
			held = append(held, fmt.Sprintf(`{"l":["%s",{"l":%s},{"T":%d}]}`, name, where, i+1))
		}
		b := stateOf(layoutOf(rows...), `{"__dcp__":{"d":[["v",1],["table",{"T":0}],["held",{"l":[`+strings.Join(held, ",")+`]}]]}}`)
		copy(b[512:], table)
		return b
	}
	for want, state := range map[string][]byte{
		"a name that none can be":                 plan(`{"tensors":{"\u0000":["float32",[2],[]]},"values":[]}`, `\u0000 [2] at [0]`),
		"two of this name or path":                plan(`{"tensors":{"a":["float32",[2],[]],"b":["float32",[2],[]]},"values":[],"paths":{"a":["x"],"b":["x"]}}`, "a [2] at [0]", "b [2] at [0]"),
		"parts of it that overlap, or too many":   plan(`{"tensors":{"a":["float32",[6],[]]},"values":[]}`, "a [3] at [0]", "a [3] at [2]"),
		"hold parts of it that overlap":           plan(`{"tensors":{"a":["float32",[6],[]]},"values":[]}`, "a [3] at [0]", "a [4] at [0]"),
		"a value that has no name":                plan(`{"tensors":{},"values":[1]}`),
		"a part lies outside of it":               plan(`{"tensors":{"a":["float32",[6],[]]},"values":[]}`, "a [3] at [4]"),
		"a: the ranks hold 3 elements of a tenso": plan(`{"tensors":{"a":["float32",[6],[]]},"values":[]}`, "a [3] at [0]"),
	} {
		if _, err := indexOf(t, state); !errors.Is(err, ErrNotNamed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, state := range [][]byte{
		plan(`{"tensors":{"a":["float32",[0,3],[]]},"values":[]}`, "a [0,0] at [0,3]"),
		plan(`{"tensors":{"a":["float32",[5,0],[]]},"values":[]}`, "a [3,0] at [0,0]", "a [2,0] at [3,0]"),
		plan(`{"tensors":{"a":["float32",[4,4],[]]},"values":[]}`, "a [2,2] at [0,0]", "a [2,2] at [0,2]", "a [2,2] at [2,0]", "a [2,2] at [2,2]"),
	} {
		x, err := indexOf(t, state)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, paths := written(t, x); len(paths) != 1 {
			t.Errorf("names %v", paths)
		}
	}
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errors.New("the disk is gone") }

// cutOff says of a file that ends early what io.ReadFull says.
type cutOff struct{ r *io.SectionReader }

func (c cutOff) ReadAt(b []byte, at int64) (int, error) {
	return io.ReadFull(io.NewSectionReader(c.r, at, int64(len(b))), b)
}

func TestAnErrorOfReadingIsNoReason(t *testing.T) {
	if err := New().Add(broken{}, 1<<20); err == nil || errors.Is(err, ErrNotNamed) {
		t.Error(err)
	}
	for _, cut := range []int64{0, 10, 70} {
		if err := New().Add(cutOff{io.NewSectionReader(bytes.NewReader(stateOf("{}", "{}")), 0, cut)}, 1<<20); !errors.Is(err, ErrNotNamed) {
			t.Errorf("cut off at %d: %v", cut, err)
		}
	}
}

// TestBoxes: where shards lie, of which torch itself is asked in the client's tests of the same rules.
func TestBoxes(t *testing.T) {
	type of = []placement
	for _, tt := range []struct {
		shape, mesh, at, local []int64
		placements             of
		offsets                []int64
		held                   bool
	}{
		{[]int64{5, 3}, []int64{2}, []int64{0}, []int64{3, 3}, of{{"shard", 0, 0}}, []int64{0, 0}, true},
		{[]int64{5, 3}, []int64{2}, []int64{1}, []int64{2, 3}, of{{"shard", 0, 0}}, []int64{3, 0}, true},
		{[]int64{5, 3}, []int64{4}, []int64{3}, []int64{0, 3}, of{{"shard", 0, 0}}, []int64{0, 0}, false},
		{[]int64{0, 3}, []int64{4}, []int64{3}, []int64{0, 3}, of{{"shard", 0, 0}}, []int64{0, 0}, true},
		{[]int64{8, 6}, []int64{2, 2}, []int64{1, 1}, []int64{4, 3}, of{{"shard", 0, 0}, {"shard", 1, 0}}, []int64{4, 3}, true},
		{[]int64{8, 6}, []int64{2, 2}, []int64{1, 0}, []int64{2, 6}, of{{"strided", 0, 2}, {"shard", 0, 0}}, []int64{2, 0}, true},
		{[]int64{8, 6}, []int64{2, 2}, []int64{0, 1}, []int64{4, 6}, of{{"replicate", -1, 0}, {"shard", 0, 0}}, []int64{4, 0}, true},
		{[]int64{8, 6}, []int64{2}, nil, []int64{0}, of{{"shard", 0, 0}}, nil, false},
	} {
		l := layout{shape: tt.shape, mesh: tt.mesh, at: tt.at, placements: tt.placements}
		offsets, held, err := l.box(tt.local)
		if err != nil || held != tt.held || held && !slices.Equal(offsets, tt.offsets) {
			t.Errorf("%+v: %v %v %v, want %v %v", l, offsets, held, err, tt.offsets, tt.held)
		}
	}
}

// FuzzState: whatever lies in a rank's state, and however often, it ends in a reason, or in pickles that call nothing but what is named here,
// and in parts that lie within the rank's file. What is said of it is the same each time.
func FuzzState(f *testing.F) {
	f.Add([]byte(layoutOf(whole, shard(0, 4, `["replicate"]`))), []byte(`{"m":{"d":[["w",{"T":0}],["s",{"T":1}],[1.5,{"o":[["a",{"p":0}]]}]]}}`), []byte("\x03\x00\x00\x00\x00\x00\x00\x00abc"))
	f.Add([]byte(layoutOf(bytes5, `["numpy","<i2",[2],AT,4,null]`, `["array","d",[2],AT,16,null]`, `["bytearray","",[3],AT,3,null]`, whole)),
		[]byte(`{"v":{"t":[{"T":0},{"T":1},{"T":2},{"T":3},{"T":4},{"f":"nan"},-7,123456789012345678901234567890,null,"x\u00e9"]},"__rng__":{"l":[1,[]]}}`), []byte{})
	f.Add([]byte(layoutOf(whole)), []byte(`{"o":{"d":[["optim",{"d":[["state",{"d":[[0,{"T":0}]]}],["param_groups",{"l":[{"d":[["params",{"l":[0]}],["param_names",{"l":["w"]}]]}]}]]}],["groups",{"l":[{"d":[["lr",1e-3]]}]}],["part",1],["of",{"l":[{"l":[1,{"l":[0]}]}]}]]}}`), []byte{})
	f.Add([]byte(layoutOf(whole, bytes5)), []byte(`{"__dcp__":{"d":[["v",1],["table",{"T":1}],["held",{"l":[{"l":["w",{"l":[0,0]},{"T":0}]}]}]]}}`), []byte(`{"tensors":{"w":["float32",[2,3],[]]},"values":[],"paths":{"w":["a",0]}}`))
	f.Fuzz(func(t *testing.T, layout, tree, rest []byte) {
		if len(layout)+len(tree)+len(rest) > 1<<16 {
			return
		}
		state := stateOf(string(layout), string(tree))
		copy(state[1024:4096], rest) // where a table may lie
		binary.LittleEndian.PutUint64(state[40:], uint64(len(state)))
		binary.LittleEndian.PutUint64(state[48:], uint64(len(rest)))
		state = append(state, rest...)
		x, err := indexOf(t, state, state)
		if err != nil {
			if !errors.Is(err, ErrNotNamed) {
				t.Fatal(err)
			}
			return
		}
		if !json.Valid(layout) || !json.Valid(tree) {
			t.Fatal("it was no JSON")
		}
		for _, e := range x.entries {
			for _, p := range e.parts {
				if p.at < headBytes || p.n < 0 || p.at+p.n > int64(len(state)) {
					t.Fatalf("%s lies at %d, %d bytes of %d", key(e.path), p.at, p.n, len(state))
				}
			}
		}
		written(t, x)
		checkPickles(t, x)
	})
}

// called are the only things that what is written here has a reader call.
var called = []string{
	"builtins.bytearray", "array.array", "numpy.ndarray", "collections.OrderedDict", "pickle.loads", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
	"torch.serialization._get_layout", "torch.Size", metadataModule + ".Metadata", metadataModule + ".TensorStorageMetadata", metadataModule + ".BytesStorageMetadata",
	metadataModule + ".TensorProperties", metadataModule + ".ChunkStorageMetadata", metadataModule + ".MetadataIndex", metadataModule + "._MEM_FORMAT_ENCODING",
	filesystemModule + "._StorageInfo",
}

func checkPickles(t *testing.T, x *Index) {
	t.Helper()
	var b bytes.Buffer
	if err := x.WriteMetadata(&b, files); err != nil {
		t.Fatal(err)
	}
	r := reader{in: bytes.NewReader(b.Bytes())}
	if _, err := r.unpickle(); err != nil || r.in.Len() > 0 {
		t.Fatalf(".metadata: %v, %d bytes are left", err, r.in.Len())
	}
	for _, e := range x.entries {
		if e.dtype != "" || e.value.n == 0 || e.value.rank != inValues {
			continue
		}
		r.in = bytes.NewReader(x.values[e.value.at : e.value.at+e.value.n])
		for i := range 5 { // three of the head, the value, and which storages follow
			if _, err := r.unpickle(); err != nil {
				t.Fatalf("%s: pickle %d: %v", key(e.path), i, err)
			}
		}
	}
	for class := range r.classes {
		name, isTorch := strings.CutPrefix(class, "torch.")
		if !slices.Contains(called, class) && !(isTorch && (dtypes[name] > 0 || slices.Contains(slices.Collect(maps.Values(storages)), strings.TrimSuffix(name, "Storage")))) {
			t.Fatalf("%s is called", class)
		}
	}
}
