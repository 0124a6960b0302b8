// Package helm renders the chart with the helm program of this module and compares it with what kustomize makes of the manifests.
package helm

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write docs/chart.md")

const chartDir, manifestsDir = "../../charts/holdfast", "../../manifests"

type object map[string]any

// at returns what lies at a path of fields.
func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

func (o object) key() string {
	return fmt.Sprint(o["kind"], " ", o.at("metadata", "namespace"), "/", o.at("metadata", "name"))
}

// render returns the chart's objects by key, in a namespace, with values in YAML.
func render(t *testing.T, namespace, values string) map[string]object {
	t.Helper()
	out, err := try(namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func try(namespace, values string) (map[string]object, error) {
	cmd := exec.Command("../../bin/helm", "template", "holdfast", chartDir, "--namespace", namespace, "--values", "-")
	cmd.Stdin = strings.NewReader(values)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	out := map[string]object{}
	return out, parse(string(text), out)
}

// parse adds the objects of a YAML text to out.
func parse(text string, out map[string]object) error {
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		o := object{}
		if err := yaml.UnmarshalStrict([]byte(doc), (*map[string]any)(&o)); err != nil {
			return fmt.Errorf("%w in\n%s", err, doc)
		}
		if len(o) == 0 {
			continue
		}
		if _, twice := out[o.key()]; twice {
			return fmt.Errorf("%s is there twice", o.key())
		}
		out[o.key()] = o
	}
	return nil
}

// kustomized returns the objects of the manifests, or of an overlay of these.
func kustomized(t *testing.T, components ...string) map[string]object {
	t.Helper()
	fs, dir := filesys.MakeFsOnDisk(), manifestsDir
	if len(components) > 0 {
		var err error
		if dir, err = os.MkdirTemp(".", ".overlay-"); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		text := "resources: [../" + manifestsDir + "]\ncomponents:\n"
		for _, c := range components {
			text += "- ../" + manifestsDir + "/" + c + "\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]object{}
	if err := parse(string(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// comparable takes out the three differences by design: Helm makes the release's namespace, two objects are marked to stay, and the hash in
// the name of the scheduler's configuration is made in another way.
func comparable(objects map[string]object) map[string]object {
	out := map[string]object{}
	var hash string
	for key := range objects {
		if name, ok := strings.CutPrefix(key, "ConfigMap holdfast-system/holdfast-scheduler-config-"); ok {
			hash = name
		}
	}
	for key, o := range objects {
		if key == "Namespace <nil>/holdfast-system" {
			continue
		}
		raw, err := yaml.Marshal(o)
		if err != nil {
			panic(err) // it was parsed
		}
		raw = bytes.ReplaceAll(raw, []byte("holdfast-scheduler-config-"+hash), []byte("holdfast-scheduler-config-hash"))
		o = object{}
		if err := yaml.Unmarshal(raw, (*map[string]any)(&o)); err != nil {
			panic(err) // it was written here
		}
		if m, ok := o.at("metadata", "annotations").(map[string]any); ok && m["helm.sh/resource-policy"] == "keep" {
			delete(m, "helm.sh/resource-policy")
			if len(m) == 0 {
				delete(o["metadata"].(map[string]any), "annotations")
			}
		}
		out[o.key()] = o
	}
	return out
}

func same(t *testing.T, chart, manifests map[string]object) {
	t.Helper()
	chart, manifests = comparable(chart), comparable(manifests)
	for key, want := range manifests {
		got, ok := chart[key]
		if !ok {
			t.Errorf("the chart has no %s", key)
			continue
		}
		if !reflect.DeepEqual(got, want) {
			a, _ := yaml.Marshal(got)
			b, _ := yaml.Marshal(want)
			t.Errorf("%s of the chart:\n%s\nof the manifests:\n%s", key, a, b)
		}
	}
	for key := range chart {
		if _, ok := manifests[key]; !ok {
			t.Errorf("the manifests have no %s", key)
		}
	}
}

func TestSameAsTheManifests(t *testing.T) { same(t, render(t, "holdfast-system", ""), kustomized(t)) }

// TestSameAsTheComponents: values that stand for a component of the manifests give its objects.
func TestSameAsTheComponents(t *testing.T) {
	for component, values := range map[string]string{
		"network-policy":     "networkPolicy: {enabled: true}",
		"held-nodes":         "restrictHeldNodes: true",
		"image-pull-secrets": "readWithPullSecrets: true",
		"private-registry":   "image: {pullSecrets: [holdfast-registry]}",
		"node-gke":           "node: {gkeDriver: true}",
		"node-runtime-class": "node: {runtimeClass: nvidia}",
	} {
		t.Run(component, func(t *testing.T) { same(t, render(t, "holdfast-system", values), kustomized(t, component)) })
	}
}

// TestNamesAreFree: no object of another installation keeps a default namespace or name, and no reference does.
func TestNamesAreFree(t *testing.T) {
	objects := render(t, "ml", "{namePrefix: acme-, nodeNamespace: ml-nodes, networkPolicy: {enabled: true}, restrictHeldNodes: true, readWithPullSecrets: true}")
	for key, o := range objects {
		name := fmt.Sprint(o.at("metadata", "name"))
		if !strings.HasPrefix(name, "acme-holdfast") && name != "gangs.holdfast.dev" && name != "ml-nodes" {
			t.Errorf("%s has no prefix", key)
		}
		if ns := o.at("metadata", "namespace"); ns != nil && !slices.Contains([]any{"ml", "ml-nodes", "kube-system", "kube-node-lease"}, ns) {
			t.Errorf("%s lies in another namespace", key)
		}
		raw, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			word := strings.TrimSpace(line)
			if strings.Contains(word, "holdfast-system") || strings.HasPrefix(word, "namespace: holdfast") {
				t.Errorf("%s: %s", key, word)
			}
		}
	}
	references(t, objects)
	d := objects["Deployment ml/acme-holdfast-controller"]
	args := fmt.Sprint(d.container()["args"])
	for _, want := range []string{"--namespace=ml", "--name-prefix=acme-", "--image-pull-secrets"} {
		if !strings.Contains(args, want) {
			t.Errorf("the controller runs with %s, without %s", args, want)
		}
	}
	if config := fmt.Sprint(find(objects, "ConfigMap").at("data", "config.yaml")); !strings.Contains(config, "resourceNamespace: ml, resourceName: acme-holdfast-scheduler}") {
		t.Errorf("the scheduler's lease: %s", config)
	}
}

func (o object) container() map[string]any {
	return o.at("spec", "template", "spec", "containers").([]any)[0].(map[string]any)
}

// find returns the one object of a kind.
func find(objects map[string]object, kind string) object {
	for _, o := range objects {
		if o["kind"] == kind {
			return o
		}
	}
	return nil
}

// references checks that what objects name is there, by the names that others of ours have.
func references(t *testing.T, objects map[string]object) {
	t.Helper()
	has := func(of, kind string, name any) {
		for _, o := range objects {
			if o["kind"] == kind && o.at("metadata", "name") == name {
				return
			}
		}
		t.Errorf("%s names %s %v, which is not there", of, kind, name)
	}
	for key, o := range objects {
		switch o["kind"] {
		case "ClusterRoleBinding", "RoleBinding":
			if name := fmt.Sprint(o.at("roleRef", "name")); strings.Contains(name, "holdfast") {
				has(key, fmt.Sprint(o.at("roleRef", "kind")), name)
			}
			for _, s := range o["subjects"].([]any) {
				has(key, "ServiceAccount", s.(map[string]any)["name"])
			}
		case "Deployment", "DaemonSet":
			has(key, "ServiceAccount", o.at("spec", "template", "spec", "serviceAccountName"))
			if class := fmt.Sprint(o.at("spec", "template", "spec", "priorityClassName")); strings.Contains(class, "holdfast") {
				has(key, "PriorityClass", class)
			}
			volumes, _ := o.at("spec", "template", "spec", "volumes").([]any)
			for _, v := range volumes {
				if m, ok := v.(map[string]any)["configMap"].(map[string]any); ok {
					has(key, "ConfigMap", m["name"])
				}
			}
		case "ValidatingAdmissionPolicyBinding":
			has(key, "ValidatingAdmissionPolicy", o.at("spec", "policyName"))
		case "MutatingWebhookConfiguration":
			for _, w := range o["webhooks"].([]any) {
				has(key, "Service", object(w.(map[string]any)).at("clientConfig", "service", "name"))
			}
		case "FlowSchema":
			if level := fmt.Sprint(o.at("spec", "priorityLevelConfiguration", "name")); strings.Contains(level, "holdfast") {
				has(key, "PriorityLevelConfiguration", level)
			}
		}
	}
}

func TestReferencesByDefault(t *testing.T) { references(t, render(t, "holdfast-system", "")) }

func TestValues(t *testing.T) {
	objects := render(t, "holdfast-system", `
image: {registry: registry.example.com/holdfast, tag: v7, pullPolicy: Always, pullSecrets: [a, b]}
highAvailability: false
crds: false
controller:
  flags: {observe-only: true, max-gangs-per-namespace: 20000000, device-resource: [example.com/npu, example.com/gpu-*]}
  resources: {limits: {memory: 1Gi}}
  podAnnotations: {a: b}
  pod: {hostNetwork: true, nodeSelector: {kubernetes.io/arch: arm64}}
scheduler: {flags: {v: 4}, configuration: {podMaxBackoffSeconds: 5}}
node: {enabled: false}
networkPolicy: {enabled: true, nodeCIDRs: [10.0.0.0/16], monitoringNamespace: prom}
`)
	for key := range objects {
		for _, left := range []string{"PodDisruptionBudget", "CustomResourceDefinition", "holdfast-node/", "/holdfast-node$"} {
			if strings.Contains(key+"$", left) && key != "FlowSchema <nil>/holdfast-node" {
				t.Errorf("%s was switched off", key)
			}
		}
	}
	d := objects["Deployment holdfast-system/holdfast-controller"]
	c := d.container()
	args := fmt.Sprint(c["args"])
	for _, want := range []string{"--observe-only=true", "--max-gangs-per-namespace=20000000", "--device-resource=example.com/npu",
		"--device-resource=example.com/gpu-*", "--agent-pull-secrets=a,b", "--agent-pull-policy=Always"} {
		if !strings.Contains(args, want) {
			t.Errorf("the controller runs with %s, without %s", args, want)
		}
	}
	for what, pair := range map[string][2]any{
		"image":       {c["image"], "registry.example.com/holdfast/holdfast-controller:v7"},
		"agent":       {c["env"].([]any)[0].(map[string]any)["value"], "registry.example.com/holdfast/holdfast-agent:v7"},
		"replicas":    {fmt.Sprint(d.at("spec", "replicas")), "1"},
		"memory":      {object(c).at("resources", "limits", "memory"), "1Gi"},
		"request":     {object(c).at("resources", "requests", "memory"), "128Mi"},
		"annotation":  {d.at("spec", "template", "metadata", "annotations", "a"), "b"},
		"annotations": {d.at("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/default-container"), "controller"},
		"network":     {d.at("spec", "template", "spec", "hostNetwork"), true},
		"processor":   {d.at("spec", "template", "spec", "nodeSelector", "kubernetes.io/arch"), "arm64"},
		"secrets":     {fmt.Sprint(d.at("spec", "template", "spec", "imagePullSecrets")), "[map[name:a] map[name:b]]"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %v, want %v", what, pair[0], pair[1])
		}
	}
	s := fmt.Sprint(find(objects, "ConfigMap").at("data", "config.yaml"))
	if !strings.Contains(s, "podMaxBackoffSeconds: 5") || !strings.Contains(s, "schedulerName: holdfast-scheduler") {
		t.Errorf("the scheduler's configuration is %s", s)
	}
	if args := fmt.Sprint(objects["Deployment holdfast-system/holdfast-scheduler"].container()["args"]); !strings.Contains(args, "--v=4") {
		t.Errorf("the scheduler runs with %s", args)
	}
	p := fmt.Sprint(objects["NetworkPolicy holdfast-system/holdfast-controller"]["spec"])
	if !strings.Contains(p, "10.0.0.0/16") || !strings.Contains(p, "kubernetes.io/metadata.name:prom") {
		t.Errorf("the network policy is %s", p)
	}
}

// TestKind: the values of the quick start give one replica of each component, by its published name, and no daemon.
func TestKind(t *testing.T) {
	values, err := os.ReadFile("../../examples/kind/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var running []string
	for key, o := range render(t, "holdfast-system", string(values)) {
		if slices.Contains([]any{"Deployment", "DaemonSet", "StatefulSet"}, o["kind"]) {
			running = append(running, fmt.Sprint(key, " ", o.at("spec", "replicas"), " ", o.container()["image"]))
		}
	}
	slices.Sort(running)
	if want := []string{"Deployment holdfast-system/holdfast-controller 1 holdfast.dev/holdfast-controller:v0.1.0-dev",
		"Deployment holdfast-system/holdfast-scheduler 1 holdfast.dev/holdfast-scheduler:v0.1.0-dev"}; !slices.Equal(running, want) {
		t.Errorf("running %q, want %q", running, want)
	}
}

// TestConfigurationFile: the fields of config are in a ConfigMap that the container mounts and reads; env is in the container.
func TestConfigurationFile(t *testing.T) {
	objects := render(t, "ml", "controller: {config: {maxGangsPerNamespace: 200}, env: [{name: A, value: beta}]}\nnode: {config: {deadline: 9s}}\n")
	for workload, want := range map[string][]string{
		"Deployment ml/holdfast-controller":     {"kind: ControllerConfiguration", "maxGangsPerNamespace: 200", "beta"},
		"DaemonSet holdfast-node/holdfast-node": {"kind: NodeConfiguration", "deadline: 9s", "--boot-id"},
	} {
		pod, mounted := fmt.Sprint(objects[workload].at("spec", "template", "spec")), 0
		namespace, _, _ := strings.Cut(strings.Fields(workload)[1], "/")
		for key, o := range objects {
			name, ok := strings.CutPrefix(key, "ConfigMap "+namespace+"/")
			if text := fmt.Sprint(o["data"]); ok && strings.Contains(text, want[0]) && strings.Contains(text, want[1]) && strings.Contains(pod, name) {
				mounted++
			}
		}
		if mounted != 1 || !strings.Contains(pod, "--config=/etc/holdfast/config.yaml") || !strings.Contains(pod, want[2]) {
			t.Errorf("%s mounts %d files: %s", workload, mounted, pod)
		}
	}
}

// TestWrongValues: a wrong value is refused with its name.
func TestWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"replicas: 3":                                "replicas",
		"controller: {flags: {observe: true}}":       "observe",
		"controller: {flags: {observe-only: 1}}":     "observe-only",
		"scheduler: {flags: {config: /x}}":           "config",
		"controller: {flags: {config: /x}}":          "config",
		"node: {config: {kind: x}}":                  "kind",
		"node: {config: {deadline: 9}}":              "/node/config/deadline",
		"controller: {config: {agentImage: x}}":      "agentImage",
		"image: {pullPolicy: always}":                "pullPolicy",
		"namePrefix: acme":                           "namePrefix",
		"nodeNamespace: holdfast-system":             "nodeNamespace must not be the release's namespace",
		"node: {pod: {containers: []}}":              "/node/pod",
		"image: {registry: registry.example.com/}":   "registry",
		"controller: {resources: {limit: {cpu: 1}}}": "limit",
	} {
		if _, err := try("holdfast-system", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", values, err, want)
		}
	}
}

// TestKept: what running jobs need after an uninstallation stays.
func TestKept(t *testing.T) {
	var kept []string
	for key, o := range render(t, "holdfast-system", "") {
		if o.at("metadata", "annotations", "helm.sh/resource-policy") == "keep" {
			kept = append(kept, key)
		}
	}
	slices.Sort(kept)
	if want := []string{"CustomResourceDefinition <nil>/gangs.holdfast.dev", "Secret holdfast-system/holdfast-certs"}; !slices.Equal(kept, want) {
		t.Errorf("%v stay, want %v", kept, want)
	}
}

// TestDocs: docs/chart.md is made from the values and their comments; each value has one.
func TestDocs(t *testing.T) {
	text, err := docs()
	if err != nil {
		t.Fatal(err)
	}
	const path = "../../docs/chart.md"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(have, []byte("<!-- values -->\n"))
	_, after, ends := bytes.Cut(rest, []byte("<!-- /values -->\n"))
	if !ok || !ends {
		t.Fatalf("%s has no place for the values", path)
	}
	want := slices.Concat(before, []byte("<!-- values -->\n"+text+"<!-- /values -->\n"), after)
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(have, want) {
		t.Errorf("%s is not made of the present values: go test -run TestDocs -update", path)
	}
}
