package alerts

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// values are those of the variables of the dashboards.
var values = strings.NewReplacer("$namespace", "team-a", "$gang", "train")

// series returns what a program would serve for the metrics of a query: a series of each, with the labels that docs/metrics.md lists and
// values that the query selects. Counters rise.
func series(t *testing.T, query string, known map[string][]string) string {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Fatal(err)
	}
	load := map[string]bool{}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		have := map[string]string{}
		for _, l := range known[v.Name] {
			have[l] = "x"
		}
		for _, m := range v.LabelMatchers {
			switch {
			case m.Name == labels.MetricName:
			case m.Type == labels.MatchEqual:
				have[m.Name] = m.Value
			case m.Type == labels.MatchRegexp:
				have[m.Name] = strings.ReplaceAll(m.Value, ".*", "x")
			}
		}
		const until = "x720"
		rises := strings.HasSuffix(v.Name, "_total") || strings.HasSuffix(v.Name, "_bucket")
		ends := []string{""}
		if strings.HasSuffix(v.Name, "_bucket") {
			ends = []string{"1", "+Inf"}
		}
		for _, le := range ends {
			if le != "" {
				have["le"] = le
			}
			var pairs []string
			for _, l := range slices.Sorted(maps.Keys(have)) {
				pairs = append(pairs, fmt.Sprintf("%s=%q", l, have[l]))
			}
			load[fmt.Sprintf("  %s{%s} %s%s\n", v.Name, strings.Join(pairs, ","), map[bool]string{true: "0+1", false: "1+0"}[rises], until)] = true
		}
		return nil
	})
	return "load 1m\n" + strings.Join(slices.Sorted(maps.Keys(load)), "")
}

// TestQueriesGiveData: Prometheus' engine gives each panel at least one series from what the programs serve.
func TestQueriesGiveData(t *testing.T) {
	known := documented(t)
	files, err := filepath.Glob(monitoring + "dashboards/*.json")
	if err != nil {
		t.Fatal(err)
	}
	engine := promqltest.NewTestEngine(t, false, 0, 1_000_000)
	for _, file := range files {
		d := dashboard{}
		if err := json.Unmarshal([]byte(read(t, file)), &d); err != nil {
			t.Fatal(err)
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				query := values.Replace(target.Expr)
				storage := promqltest.LoadedStorage(t, series(t, query, known))
				q, err := engine.NewInstantQuery(t.Context(), storage, nil, query, time.Unix(0, 0).Add(11*time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				result := q.Exec(t.Context())
				vector, err := result.Vector()
				switch {
				case result.Err != nil || err != nil:
					t.Errorf("%s, %s: %s: %v, %v", d.Title, p.Title, query, result.Err, err)
				case len(vector) == 0:
					t.Errorf("%s, %s: %s gives nothing", d.Title, p.Title, query)
				}
				for _, sample := range vector {
					if math.IsNaN(sample.F) {
						t.Errorf("%s, %s: %s is no number: %v", d.Title, p.Title, query, sample)
					}
				}
				q.Close()
			}
		}
	}
}
