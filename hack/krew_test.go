package hack

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestKrew: the manifest has an archive for each system and processor, with its checksum; a missing archive is an error.
func TestKrew(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"} {
		if _, err := exec.Command("./krew.sh", "v1.2.3", dir, "https://example.com/v1.2.3").Output(); err == nil {
			t.Errorf("without %s there is no error", name)
		}
		if err := os.WriteFile(filepath.Join(dir, "kubectl-holdfast-"+name+".tar.gz"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("./krew.sh", "v1.2.3", dir, "https://example.com/v1.2.3").Output()
	if err != nil {
		t.Fatal(err)
	}
	var plugin struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, Sha256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal(out, &plugin); err != nil {
		t.Fatal(err)
	}
	if plugin.Metadata.Name != "holdfast" || plugin.Spec.Version != "v1.2.3" || len(plugin.Spec.Platforms) != 4 {
		t.Errorf("%s", out)
	}
	for _, p := range plugin.Spec.Platforms {
		name := p.Selector.MatchLabels["os"] + "-" + p.Selector.MatchLabels["arch"]
		sum := sha256.Sum256([]byte(name))
		if p.URI != "https://example.com/v1.2.3/kubectl-holdfast-"+name+".tar.gz" || p.Sha256 != hex.EncodeToString(sum[:]) || p.Bin != "kubectl-holdfast" {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
