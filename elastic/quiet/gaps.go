package quiet

import (
	"math"
	"time"
)

// gaps counts the times between steps, in classes that grow by an eighth of an octave from shortest on: a few hundred bytes for any number
// of steps. All counts are halved when there are many, so that newer gaps weigh more.
type gaps struct {
	count [classes]uint16
	total int
}

const (
	shortest  = 10 * time.Millisecond
	perOctave = 8
	classes   = 20 * perOctave // up to three hours
	halveAt   = 4096
)

func (g *gaps) add(gap time.Duration) {
	class := 0
	if gap > shortest {
		class = min(classes-1, int(math.Ceil(perOctave*math.Log2(float64(gap)/float64(shortest)))))
	}
	g.count[class]++
	if g.total++; g.total < halveAt {
		return
	}
	g.total = 0
	for i := range g.count {
		g.count[i] /= 2
		g.total += int(g.count[i])
	}
}

// p99 returns a gap that 99 of 100 do not exceed, by an eighth of an octave at most too long; false: none is known.
func (g *gaps) p99() (time.Duration, bool) {
	above, most := 0, g.total/100
	for class := classes - 1; class >= 0; class-- {
		if above += int(g.count[class]); above > most {
			return time.Duration(float64(shortest) * math.Exp2(float64(class)/perOctave)), true
		}
	}
	return 0, false
}
