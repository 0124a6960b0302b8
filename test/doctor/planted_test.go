package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast.dev/holdfast/cmd/kubectl-holdfast/doctor"
	"holdfast.dev/holdfast/internal/eventually"
	"holdfast.dev/holdfast/test/devcluster"
	"holdfast.dev/holdfast/test/harness"
)

// before is applied before the manifests, whose admission would refuse the pod's label.
const before = `
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: Pod
metadata: {name: train-0, namespace: team-a, labels: {holdfast.dev/gang: train}}
spec:
  nodeName: real-1
  initContainers: [{name: holdfast-install, image: none}]
  containers: [{name: train, image: none}]
`

// fault is one planted fault: what is done to the cluster, and the finding that it must give.
type fault struct {
	name string
	// plant are kubectl's command lines; a text after " <<" is standard input.
	plant  []string
	check  string
	result doctor.Result
	words  string
}

const (
	node = `apply --server-side -f - <<{apiVersion: v1, kind: Node, metadata: {name: real-1, labels: {nvidia.com/gpu.present: "true"}}}`
	info = `patch node real-1 --subresource=status --type=merge -p {"status":{"nodeInfo":{"kernelVersion":"%s","operatingSystem":"linux",` +
		`"architecture":"amd64","bootID":"","containerRuntimeVersion":"","kubeProxyVersion":"","kubeletVersion":"","machineID":"","osImage":"",` +
		`"systemUUID":""},"conditions":[{"type":"HoldfastHealthy","status":"%s"}]}}`
	lease = `apply --server-side --force-conflicts -f - <<{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: real-1, namespace: kube-node-lease},` +
		` spec: {leaseDurationSeconds: %d, holderIdentity: real-1, renewTime: "2026-01-02T03:04:05.000000Z"}}`
	policy = `apply -f - <<{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: %s},` +
		` spec: {podSelector: {}, policyTypes: [%s]}}`
	daemons = `apply -f - <<{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: nvidia-driver, namespace: default}, spec: {selector: {matchLabels: {a: b}},` +
		` template: {metadata: {labels: {a: b}}, spec: {nodeSelector: {no: node}, containers: [{name: c, image: none}]}}}}`
	scaler = `apply -f - <<{apiVersion: apps/v1, kind: Deployment, metadata: {name: cluster-autoscaler, namespace: kube-system}, spec: {replicas: 0,` +
		` selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: none,` +
		` args: [--startup-taint=holdfast.dev/outage]}]}}}}`
	limit = `apply -f - <<{apiVersion: v1, kind: ResourceQuota, metadata: {name: full, namespace: team-a}, spec: {hard: {pods: "1"}}}`
	stale = `apply --server-side --force-conflicts -f - <<{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %s, namespace: holdfast-system},` +
		` spec: {leaseDurationSeconds: 15, holderIdentity: %[1]s-0_x, renewTime: "%[2]s"}}`
	pull = `patch pod train-0 -n team-a --subresource=status --type=merge -p {"status":{"initContainerStatuses":[{"name":"holdfast-install","image":"none",` +
		`"imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":"ImagePullBackOff","message":"401 Unauthorized"}}}]}}`
	authority = `patch mutatingwebhookconfiguration holdfast --type=json -p [{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"`
	service   = `patch service holdfast-coordinator -n holdfast-system --type=merge -p {"spec":{"selector":{"app.kubernetes.io/name":"%s"}}}`
)

var faults = []fault{
	{"OldKernel", []string{node, fmt.Sprintf(info, "4.18.0-553.el8", "Unknown")}, "Nodes", doctor.Fail, "4.18.0"},
	{"NoNVML", nil, "NVML", doctor.Fail, "NVIDIA GPUs, so it sees faults only in the kernel log: real-1"},
	{"LongLease", []string{fmt.Sprintf(lease, 120)}, "Leases", doctor.Warn, "real-1 (2m0s)"},
	{"LeaseNotRenewed", nil, "Leases", doctor.Warn, "leases of nodes that are not Ready were not renewed: real-1"},
	{"ImageNotPulled", []string{pull}, "AgentImage", doctor.Fail, "401 Unauthorized"},
	{"NoAuthority", []string{authority + expired + `"}]`}, "Certificate", doctor.Fail, "expired on 2001-01-02"},
	{"ControllerShut", []string{fmt.Sprintf(policy, "holdfast-system", "Ingress")}, "NetworkPolicies", doctor.Fail, "blocks the API server from admission"},
	{"NamespaceShut", []string{fmt.Sprintf(policy, "team-a", "Egress")}, "NetworkPolicies", doctor.Fail, "team-a/deny blocks pods of a gang from one another"},
	{"CoordinatorGone", []string{fmt.Sprintf(service, "nothing")}, "Coordinator", doctor.Fail, "no ready endpoint"},
	{"NoLeader", []string{fmt.Sprintf(stale, "holdfast-scheduler", "2026-01-02T03:04:05.000000Z")}, "Leaders", doctor.Fail, "the leader of holdfast-scheduler"},
	{"OtherVersion", []string{"set image deployment/holdfast-scheduler -n holdfast-system scheduler=holdfast.dev/holdfast-scheduler:v9"},
		"Versions", doctor.Warn, "holdfast-scheduler v9"},
	{"DaemonsShutOut", []string{daemons}, "Taints", doctor.Warn, "default/nvidia-driver"},
	{"StartupTaint", []string{scaler}, "Autoscaler", doctor.Fail, "startup taint"},
	{"ProfileOfNodes", []string{"label namespace holdfast-node --overwrite pod-security.kubernetes.io/enforce=baseline"}, "PodSecurity", doctor.Fail, "baseline"},
	{"QuotaFull", []string{limit}, "Quota", doctor.Warn, "quota full has no pods left"},
	{"NoDNS", []string{"label endpointslice kube-dns -n kube-system --overwrite kubernetes.io/service-name=other"}, "DNS", doctor.Warn, "no ready endpoint"},
}

// expired is an authority that expired long ago, as JSON has it.
var expired = func() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	end := time.Date(2001, 1, 2, 0, 0, 0, 0, time.UTC)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.AddDate(0, 0, -1), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}()

// TestPlanted plants all faults and requires that each is found, which none was before.
func TestPlanted(t *testing.T) {
	c := harness.Start(t, devcluster.Options{SimNodes: 2})
	ctx := t.Context()
	kubectl(ctx, t, c, "apply -f - <<"+before)
	report, code := run(ctx, t, c, "-n", "team-a")
	if report.Stage != doctor.BeforeInstall || find(report, "Webhook") != nil {
		t.Errorf("before the installation: %+v, exit code %d", report, code)
	}
	if out, err := c.RunKubectl(ctx, "apply", "--server-side", "-k", filepath.Join(c.Source, "manifests")); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	report, _ = run(ctx, t, c, "-n", "team-a")
	if got := find(report, "Webhook"); got == nil || got.Result != doctor.Fail || !says(*got, "does not reach admission") { // simulated pods answer nothing
		t.Errorf("%+v", got)
	}
	for _, f := range faults {
		if got := find(report, f.check); got == nil || says(*got, f.words) {
			t.Errorf("before fault %s: %+v", f.name, got)
		}
	}
	t.Run("Faults", func(t *testing.T) { allFound(ctx, t, c) })
	t.Run("NoRights", func(t *testing.T) { noRights(ctx, t, c) })
	t.Run("BeforeUninstall", func(t *testing.T) { leaving(ctx, t, c) })
}

func allFound(ctx context.Context, t *testing.T, c *harness.Cluster) {
	for _, f := range faults {
		for _, line := range f.plant {
			kubectl(ctx, t, c, line)
		}
	}
	eventually.Holds(t, "every fault is found", func() (bool, any) {
		report, code := run(ctx, t, c, "-n", "team-a")
		for _, f := range faults {
			got := find(report, f.check)
			if got == nil || got.Result != f.result || !says(*got, f.words) || got.Remedy == "" || code != 1 {
				return false, fmt.Sprintf("%s, exit code %d: %+v", f.name, code, got)
			}
		}
		return true, nil
	})
}

// noRights: of what a user may not read the report says Unknown, nowhere Pass.
func noRights(ctx context.Context, t *testing.T, c *harness.Cluster) {
	report, code := run(ctx, t, c, "-n", "team-a", "--as=bob")
	for _, f := range report.Findings {
		if f.Result == doctor.Pass && f.Check != "APIServer" {
			t.Errorf("%+v", f)
		}
	}
	if got := find(report, "Taints"); got == nil || got.Result != doctor.Unknown || !says(*got, "you may not list daemonsets") || code != 3 {
		t.Errorf("exit code %d: %+v", code, got)
	}
	// The roles that the remedies name suffice.
	kubectl(ctx, t, c, "create clusterrolebinding bob --clusterrole=holdfast-doctor --user=bob")
	kubectl(ctx, t, c, "create rolebinding bob -n team-a --clusterrole=view --user=bob")
	eventually.Holds(t, "bob reads what the checks need", func() (bool, any) {
		report, _ := run(ctx, t, c, "-n", "team-a", "--as=bob")
		for _, f := range report.Findings {
			if says(f, "could not be read") {
				return false, f
			}
		}
		return len(report.Findings) > 0, report
	})
}

// leaving: what a removal would leave.
func leaving(ctx context.Context, t *testing.T, c *harness.Cluster) {
	kubectl(ctx, t, c, "taint node real-1 holdfast.dev/outage=GPULost:NoSchedule")
	kubectl(ctx, t, c, `apply -f - <<{apiVersion: v1, kind: Pod, metadata: {name: lone, namespace: default}, spec: {schedulerName: holdfast-scheduler, containers: [{name: c, image: none}]}}`)
	kubectl(ctx, t, c, `apply -f - <<{apiVersion: holdfast.dev/v1alpha1, kind: Gang, metadata: {name: train, namespace: team-a},`+
		` spec: {members: 1, jobRef: {apiVersion: batch/v1, kind: Job, name: train, uid: u}}}`)
	report, _ := run(ctx, t, c, "--before-uninstall", "--as=bob") // with the rights of the checks before
	if f := find(report, "WaitingPods"); f == nil || f.Result != doctor.Unknown || !strings.Contains(f.Remedy, "holdfast-doctor-uninstall") {
		t.Errorf("%+v", f)
	}
	kubectl(ctx, t, c, "create clusterrolebinding bob-leaves --clusterrole=holdfast-doctor-uninstall --user=bob")
	eventually.Holds(t, "bob reads pods of all namespaces", func() (bool, any) {
		report, _ := run(ctx, t, c, "--before-uninstall", "--as=bob")
		f := find(report, "WaitingPods")
		return f != nil && f.Result != doctor.Unknown, f
	})
	report, code := run(ctx, t, c, "--before-uninstall")
	for check, words := range map[string]string{"RunningGangs": "team-a/train", "WaitingPods": "default/lone", "NodeMarks": "real-1", "Admission": ""} {
		if f := find(report, check); f == nil || !says(*f, words) {
			t.Errorf("%s: %+v", check, f)
		}
	}
	if code != 1 || report.Stage != doctor.BeforeUninstall {
		t.Errorf("exit code %d, %s", code, report.Stage)
	}
}

// run returns the report of doctor and its exit code.
func run(ctx context.Context, t *testing.T, c *harness.Cluster, args ...string) (r doctor.Report, code int) {
	t.Helper()
	out, err := c.Holdfast(ctx, append([]string{"doctor", "-o", "json"}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r, code
}

func find(r doctor.Report, check string) *doctor.Finding {
	for i := range r.Findings {
		if r.Findings[i].Check == check {
			return &r.Findings[i]
		}
	}
	return nil
}

// says reports whether a finding has words.
func says(f doctor.Finding, words string) bool {
	return strings.Contains(f.Message+"\n"+strings.Join(f.Also, "\n"), words)
}

// kubectl runs a line; what follows " <<" is its input, and the last argument after -p is one word.
func kubectl(ctx context.Context, t *testing.T, c *harness.Cluster, line string) {
	t.Helper()
	line, in, _ := strings.Cut(line, " <<")
	head, patch, patched := strings.Cut(line, " -p ")
	args := strings.Fields(head)
	if patched {
		args = append(args, "-p", patch)
	}
	if _, err := c.KubectlIn(ctx, in, args...); err != nil {
		t.Fatal(err)
	}
}
