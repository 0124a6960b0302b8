package stock

import (
	"encoding/binary"
	"math"
	"math/big"
	"regexp"
	"strconv"
)

// pickler writes pickles of protocol 2. Texts and numbers come from states; what is called is named here alone.
type pickler struct {
	b []byte
	// memo is where the reader will remember what was written.
	memo  map[string]int
	count int
}

func (p *pickler) op(ops string) { p.b = append(p.b, ops...) }

func (p *pickler) u32(n int) { p.b = binary.LittleEndian.AppendUint32(p.b, uint32(n)) }

func (p *pickler) int(n int64) {
	if n >= math.MinInt32 && n <= math.MaxInt32 {
		p.op("J")
		p.u32(int(int32(n)))
		return
	}
	p.op("\x8a\x08")
	p.b = binary.LittleEndian.AppendUint64(p.b, uint64(n))
}

// maxDigits is how long a number may be.
const maxDigits = 1 << 12

// number is an integer of any size, as JSON has it.
func (p *pickler) number(s string) error {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		p.int(n)
		return nil
	}
	if len(s) > maxDigits { // reading it takes as long as that squared
		return notNamed("its tree has a number of %d digits", len(s))
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return notNamed("its tree has the number %.40s", s)
	}
	size := n.BitLen()/8 + 1
	if n.Sign() < 0 { // two's complement
		n.Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	raw := n.FillBytes(make([]byte, size))
	p.op("\x8b")
	p.u32(size)
	for i := range raw {
		p.b = append(p.b, raw[size-1-i])
	}
	return nil
}

func (p *pickler) float(s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return notNamed("its tree has the number %.40s", s)
	}
	p.op("G")
	p.b = binary.BigEndian.AppendUint64(p.b, math.Float64bits(f))
	return nil
}

func (p *pickler) text(s string) {
	p.op("X")
	p.u32(len(s))
	p.op(s)
}

func (p *pickler) bytes(b []byte) {
	p.op("B")
	p.u32(len(b))
	p.b = append(p.b, b...)
}

func (p *pickler) ints(numbers []int64) {
	p.op("(")
	for _, n := range numbers {
		p.int(n)
	}
	p.op("t")
}

// importable are names that mean nothing else in a pickle.
var importable = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// class names what the reader finds by import. A name must be one of this package's own: anything that a state says is looked up first.
func (p *pickler) class(module, name string) {
	if !importable.MatchString(module) || !importable.MatchString(name) {
		panic("a class that has no name")
	}
	p.op("c" + module + "\n" + name + "\n")
}

// remember has the reader remember what was written last, and says where.
func (p *pickler) remember() int {
	p.op("r")
	p.u32(p.count)
	p.count++
	return p.count - 1
}

func (p *pickler) recall(at int) {
	p.op("j")
	p.u32(at)
}

// maxMemo bounds what is remembered by name.
const maxMemo = 1 << 13

// once writes what write does, and from then on a reference to it.
func (p *pickler) once(name string, write func()) {
	if at, ok := p.memo[name]; ok {
		p.recall(at)
		return
	}
	write()
	if p.memo == nil {
		p.memo = map[string]int{}
	}
	if len(p.memo) < maxMemo {
		p.memo[name] = p.remember()
	}
}

// json writes a value of JSON, to be compared with others.
func (p *pickler) json(v *node) {
	p.b = append(p.b, byte(v.kind), byte(v.n))
	p.text(v.s)
	p.u32(len(v.kids))
	for i := range v.kids {
		p.json(&v.kids[i])
	}
}
