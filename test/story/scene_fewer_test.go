package story

import "testing"

func TestApart(t *testing.T) {
	loss := func(step int64, bits string) Loss { return Loss{Step: step, Bits: bits} }
	alone := []Loss{loss(1, "0x1p+1"), loss(2, "0x1p+0")}
	for _, c := range []struct {
		what      string
		disturbed []Loss
		again     int
		fails     bool
	}{
		{"equal", []Loss{loss(1, "0x1p+1"), loss(2, "0x1p+0"), loss(3, "0x1p+3")}, 0, false},
		{"a step done again", []Loss{loss(1, "0x1p+1"), loss(2, "0x1p+0"), loss(2, "0x1p+0")}, 1, false},
		{"another order of sums", []Loss{loss(1, "0x1.000001p+1"), loss(2, "0x1p+0")}, 0, false},
		{"other samples", []Loss{loss(1, "0x1p+1"), loss(2, "0x1.01p+0")}, 0, true},
		{"a step left out", []Loss{loss(2, "0x1p+0")}, 0, true},
		{"no number", []Loss{loss(1, "nan"), loss(2, "0x1p+0")}, 0, true},
	} {
		if _, again, err := apart(c.disturbed, alone, 2); again != c.again || (err != nil) != c.fails {
			t.Errorf("%s: %d again, %v", c.what, again, err)
		}
	}
}
