package alerts

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

const (
	tree       = "../../"
	monitoring = tree + "manifests/monitoring/"
)

// promtool is the program that runs the unit tests of rules; make test-alerts builds it.
var promtool = flag.String("promtool", "", "path of promtool")

// targetLabels are those that Prometheus or the monitors add to each series.
var targetLabels = []string{"namespace", "pod", "instance", "job", "container", "endpoint", "node", "le", "__name__"}

// documented are the metrics of docs/metrics.md with their labels; a histogram has three names.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{"ALERTS": {"alertname", "alertstate"}}
	ticked := regexp.MustCompile("`([^`]+)`")
	for _, line := range strings.Split(read(t, tree+"docs/metrics.md"), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 7 || !strings.HasPrefix(line, "| `") {
			continue
		}
		name, labels := strings.Trim(cells[1], " `"), []string{}
		for _, l := range ticked.FindAllStringSubmatch(cells[3], -1) {
			labels = append(labels, l[1])
		}
		if strings.TrimSpace(cells[2]) == "histogram" {
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				names[name+end] = labels
			}
			continue
		}
		names[name] = labels
	}
	if len(names) < 40 {
		t.Fatalf("found %d metrics, so this test misreads the page", len(names))
	}
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// check parses a query and returns what it has that no metric has.
func check(query string, known map[string][]string) error {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return err
	}
	var wrong error
	labels := slices.Clone(targetLabels)
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		own, ok := known[v.Name]
		if !ok {
			wrong = fmt.Errorf("docs/metrics.md has no metric %s", v.Name)
			return nil
		}
		labels = append(labels, own...)
		for _, m := range v.LabelMatchers {
			if !slices.Contains(own, m.Name) && !slices.Contains(targetLabels, m.Name) {
				wrong = fmt.Errorf("metric %s has no label %s", v.Name, m.Name)
			}
		}
		return nil
	})
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !slices.Contains(labels, l) {
					wrong = fmt.Errorf("no metric of the query has label %s", l)
				}
			}
		}
		return nil
	})
	return wrong
}

// TestCheckSeesWhatIsWrong: a query with an unknown metric, label or grouping, and one that is no query.
func TestCheckSeesWhatIsWrong(t *testing.T) {
	known := documented(t)
	for query, want := range map[string]string{
		"sum by (reason) (holdfast_nodes_held)":     "",
		"holdfast_nodes_hold":                       "no metric holdfast_nodes_hold",
		`holdfast_nodes_held{why="x"}`:              "no label why",
		"sum by (cause) (holdfast_nodes_held)":      "label cause",
		"sum by (reason) holdfast_nodes_held":       "parse error",
		"rate(holdfast_recovery_phase_seconds[1h])": "no metric",
	} {
		if err := check(query, known); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}

// rules are the shipped alerts; a field that the operator does not know is an error.
func rules(t *testing.T) *monitoringv1.PrometheusRule {
	t.Helper()
	rule := &monitoringv1.PrometheusRule{}
	if err := yaml.UnmarshalStrict([]byte(read(t, monitoring+"rules.yaml")), rule); err != nil {
		t.Fatal(err)
	}
	return rule
}

// TestAlerts: each alert asks for documented metrics and has summary, description, a severity, a section in the runbooks and a unit test,
// and the unit tests pass.
func TestAlerts(t *testing.T) {
	known, runbooks, tests := documented(t), read(t, tree+"docs/runbooks.md"), read(t, "rules_test.yaml")
	rule := rules(t)
	for _, g := range rule.Spec.Groups {
		for _, r := range g.Rules {
			if err := check(r.Expr.String(), known); err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			for _, key := range []string{"summary", "description", "runbook"} {
				if r.Annotations[key] == "" {
					t.Errorf("%s has no %s", r.Alert, key)
				}
			}
			if s := r.Labels["severity"]; s != "warning" && s != "critical" {
				t.Errorf("%s has severity %q", r.Alert, s)
			}
			if !strings.Contains(runbooks, "\n### "+r.Alert+"\n") || !strings.HasSuffix(r.Annotations["runbook"], "#"+strings.ToLower(r.Alert)) {
				t.Errorf("docs/runbooks.md has no section %s that %s names", r.Alert, r.Annotations["runbook"])
			}
			if !strings.Contains(tests, `ALERTS{alertname="`+r.Alert+`"`) {
				t.Errorf("rules_test.yaml does not test %s", r.Alert)
			}
		}
	}
	if *promtool == "" {
		t.Skip("SKIPPED, NOT TESTED: promtool is missing: make test-alerts")
	}
	dir := t.TempDir()
	spec, err := yaml.Marshal(rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"rules.yaml": string(spec), "test.yaml": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "rules.yaml"}, {"test", "rules", "test.yaml"}} {
		cmd := exec.Command(*promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// dashboard is what the tests read of a dashboard of Grafana.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

// TestDashboards: each query of each panel and variable asks for documented metrics and labels.
func TestDashboards(t *testing.T) {
	known := documented(t)
	legend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	variable := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	files, err := filepath.Glob(monitoring + "dashboards/*.json")
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		d := dashboard{}
		if err := json.Unmarshal([]byte(read(t, file)), &d); err != nil {
			t.Fatal(err)
		}
		defined := map[string]bool{"datasource": true}
		for _, v := range d.Templating.List {
			if defined[v.Name] = true; v.Type != "query" {
				continue
			}
			m := variable.FindStringSubmatch(v.Definition)
			if m == nil {
				t.Errorf("%s: variable %s has definition %q", d.Title, v.Name, v.Definition)
			} else if err := check("count by ("+m[2]+") ("+m[1]+")", known); err != nil {
				t.Errorf("%s: variable %s: %v", d.Title, v.Name, err)
			}
		}
		queries := 0
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				queries++
				if err := check(q.Expr, known); err != nil {
					t.Errorf("%s, %s: %s: %v", d.Title, p.Title, q.Expr, err)
				}
				for _, m := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
					if !defined[m[1]] {
						t.Errorf("%s, %s: there is no variable %s", d.Title, p.Title, m[1])
					}
				}
				for _, m := range legend.FindAllStringSubmatch(q.LegendFormat, -1) {
					if !strings.Contains(read(t, tree+"docs/metrics.md"), "`"+m[1]+"`") {
						t.Errorf("%s, %s: the legend has %s, which is no label", d.Title, p.Title, m[1])
					}
				}
			}
		}
		if queries < 5 {
			t.Errorf("%s has %d queries, so this test misreads it", d.Title, queries)
		}
	}
}

// TestMonitors: the operator knows all fields, and each monitor names a port of the pods that it selects.
func TestMonitors(t *testing.T) {
	pods := map[string]string{
		"holdfast-controller": "controller/deployment.yaml", "holdfast-scheduler": "scheduler/deployment.yaml", "holdfast-node": "node/daemonset.yaml",
	}
	for _, text := range strings.Split(read(t, monitoring+"monitors.yaml"), "\n---\n") {
		m := &monitoringv1.PodMonitor{}
		if err := yaml.UnmarshalStrict([]byte(text), m); err != nil {
			t.Fatal(err)
		}
		name := m.Spec.Selector.MatchLabels["app.kubernetes.io/name"]
		if pods[name] == "" || len(m.Spec.PodMetricsEndpoints) != 1 {
			t.Errorf("%s selects %q", m.Name, name)
			continue
		}
		port := m.Spec.PodMetricsEndpoints[0].Port
		if port == nil || !strings.Contains(read(t, tree+"manifests/"+pods[name]), "- {name: "+*port+", containerPort: ") {
			t.Errorf("%s: pods of %s have no port %v", m.Name, name, port)
		}
		delete(pods, name)
	}
	if len(pods) > 0 {
		t.Errorf("no monitor selects %v", pods)
	}
}
