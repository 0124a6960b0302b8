package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

func TestImageOptions(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    imageOptions
		want string
		read bool
	}{
		"defaults":             {o: imageDefaults(), read: true},
		"off":                  {o: imageOptions{}},
		"secrets for nothing":  {o: imageOptions{pullSecrets: true}, want: "do nothing with --read-images=false"},
		"no file":              {o: imageOptions{read: true, authorities: empty + "x"}, want: "--registry-ca-file: reading"},
		"a file without any":   {o: imageOptions{read: true, authorities: empty}, want: "holds no certificate"},
		"insecure, no host":    {o: imageOptions{read: true, insecure: []string{"http://a"}}, want: `--insecure-registries: "http://a" is no registry`},
		"insecure, empty":      {o: imageOptions{read: true, insecure: []string{""}}, want: `--insecure-registries: "" is no registry`},
		"insecure":             {o: imageOptions{read: true, insecure: []string{"localhost:5000", "10.0.0.1"}}, read: true},
		"insecure for nothing": {o: imageOptions{insecure: []string{"a.b"}}, want: "do nothing with --read-images=false"},
		"secrets, well chosen": {o: imageOptions{read: true, pullSecrets: true}, read: true},
	} {
		images, err := c.o.images(&rest.Config{}, logr.Discard())
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) || (images != nil) != c.read {
			t.Errorf("%s: %v", name, err)
		}
	}
}
