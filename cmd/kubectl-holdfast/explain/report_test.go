package explain

import (
	"strings"
	"testing"

	"holdfast.dev/holdfast/internal/golden"
)

// TestPage: testdata/NAME.yaml as a page has every recovery and condition, loads nothing, and no text of a job is markup.
func TestPage(t *testing.T) {
	golden.Each(t, "testdata/*.yaml", func(t *testing.T, _, text string) {
		e := explained(t, text)
		if len(e.Status.Notes) > 0 {
			e.Status.Notes[0] = "<script>alert(1)</script>"
		}
		var b strings.Builder
		if err := e.WritePage(&b); err != nil {
			t.Fatal(err)
		}
		made := b.String()
		for _, never := range []string{"<script", "src=", "href=", "@import", "url(", "ZgotmplZ", "<no value>"} {
			if strings.Contains(made, never) {
				t.Errorf("the page has %q", never)
			}
		}
		if r := e.Status.Run; r != nil && strings.Count(made, "failure to first new step") != min(1, len(r.Recoveries)) ||
			r != nil && strings.Count(made, "preserveAspectRatio") != len(r.Recoveries) {
			t.Errorf("not each of %d recoveries is on the page:\n%s", len(r.Recoveries), made)
		}
	})
}
