package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	cniPluginDir     = "/usr/lib/cni"
)

// writeConfigs writes the node's own configuration files; it runs inside the node's file system.
func writeConfigs(s *layout.Spec, i int) error {
	name := s.NodeName(i)
	sum := sha256.Sum256([]byte(s.Name + "/" + name))
	for path, content := range map[string]string{
		"/etc/hostname":                      name + "\n",
		"/etc/machine-id":                    hex.EncodeToString(sum[:16]) + "\n",
		"/etc/hosts":                         fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", s.NodeIP(i), name),
		"/etc/resolv.conf":                   "nameserver " + s.ControlIP() + "\n",
		"/etc/containerd/config.toml":        containerdConfig(),
		"/etc/kubernetes/kubelet.json":       kubeletConfig(s, i),
		"/etc/kubernetes/proxy.json":         ProxyConfig(s, name, s.NodeIP(i), "/etc/kubernetes/proxy.kubeconfig"),
		"/etc/cni/holdfast/10-pods.conflist": cniConfig(s, i),
	} {
		if err := writeFile(path, content); err != nil {
			return err
		}
	}
	return nil
}

func containerdConfig() string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "/etc/cni/holdfast"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`, containerdSocket, layout.PauseImage, cniPluginDir)
}

// cniConfig gives every pod a separate routed link, so that all of its traffic passes the node's rules.
func cniConfig(s *layout.Spec, i int) string {
	return toJSON(map[string]any{
		"cniVersion": "0.4.0",
		"name":       "pods",
		"plugins": []any{
			map[string]any{
				"type": "ptp",
				"ipam": map[string]any{
					"type":    "host-local",
					"ranges":  []any{[]any{map[string]any{"subnet": s.NodePodCIDR(i)}}},
					"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
					"dataDir": "/run/cni-ipam",
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	})
}

func kubeletConfig(s *layout.Spec, i int) string {
	return toJSON(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"address":    s.NodeIP(i),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": "/etc/kubernetes/ca.crt"},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              "/etc/kubernetes/kubelet.crt",
		"tlsPrivateKeyFile":        "/etc/kubernetes/kubelet.key",
		"clusterDomain":            layout.ClusterDomain,
		"clusterDNS":               []string{s.DNSIP()},
		"resolvConf":               "/etc/resolv.conf",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		// The machine may have only version 1 cgroups.
		"failCgroupV1":           false,
		"cgroupDriver":           "cgroupfs",
		"cgroupRoot":             "/",
		"cgroupsPerQOS":          true,
		"enforceNodeAllocatable": []string{},
		"failSwapOn":             false,
		"makeIPTablesUtilChains": false,
		// Imported images cannot be pulled again, and the disk is shared by all nodes.
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"evictionHard": map[string]string{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		"serializeImagePulls": false,
		"readOnlyPort":        0,
		"healthzPort":         0,
		"registerNode":        true,
		"kubeAPIQPS":          200,
		"kubeAPIBurst":        400,
		"eventRecordQPS":      200,
		"eventBurst":          400,
		"logging":             map[string]any{"verbosity": 2},
	})
}

// ProxyConfig is the configuration of a kube-proxy in the network namespace of bindIP.
func ProxyConfig(s *layout.Spec, nodeName, bindIP, kubeconfig string) string {
	return toJSON(map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"mode":               "nftables",
		"clientConnection":   map[string]any{"kubeconfig": kubeconfig},
		"hostnameOverride":   nodeName,
		"bindAddress":        bindIP,
		"clusterCIDR":        s.PodCIDR(),
		"detectLocalMode":    "ClusterCIDR",
		"healthzBindAddress": "127.0.0.1:10256",
		"metricsBindAddress": "127.0.0.1:10249",
		"nftables":           map[string]any{"syncPeriod": "30s", "minSyncPeriod": "100ms"},
		// These are settings of the whole machine.
		"conntrack": map[string]any{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
		},
	})
}

func nodeLabels(s *layout.Spec) string {
	var out []string
	for k, v := range s.NodeLabels {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return strings.Join(out, ",")
}

func toJSON(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		panic(err) // maps of plain values always encode
	}
	return string(b) + "\n"
}
