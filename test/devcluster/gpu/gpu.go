// Package gpu is a device plugin with simulated GPUs. The plugin registers a number of devices with a kubelet and reads
// their health from a file, so that a test can break a device of one node.
package gpu

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// HealthFile, in a node's control directory, lists the ids of sick devices,
// one per line; a device that is not listed is healthy.
const HealthFile = "sick-gpus"

const (
	socket    = "holdfast-dev-gpu.sock"
	lookEvery = 200 * time.Millisecond
)

// Plugin serves the devices of one node.
type Plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	ids    []string
	health string
	log    io.Writer
}

// New describes count devices of node, with the ids that ID returns.
func New(node string, count int, healthFile string, log io.Writer) *Plugin {
	p := &Plugin{health: healthFile, log: log}
	for i := range count {
		p.ids = append(p.ids, ID(node, i))
	}
	return p
}

// ID is the id of a node's device i.
func ID(node string, i int) string { return fmt.Sprintf("GPU-%s-%d", node, i) }

// Devices is the state of all devices, given the content of the health file.
func Devices(ids []string, sick string) []*v1beta1.Device {
	bad := strings.Fields(sick)
	var out []*v1beta1.Device
	for _, id := range ids {
		h := v1beta1.Healthy
		if slices.Contains(bad, id) {
			h = v1beta1.Unhealthy
		}
		out = append(out, &v1beta1.Device{ID: id, Health: h})
	}
	return out
}

// Run serves for as long as the process lives. A kubelet that starts removes all sockets in its directory and forgets its plugins; Run then
// registers again.
func (p *Plugin) Run() {
	for {
		if err := p.serveOnce(); err != nil {
			fmt.Fprintln(p.log, "gpu plugin:", err)
		}
		time.Sleep(lookEvery)
	}
}

// serveOnce serves until the plugin's or the kubelet's socket is replaced.
func (p *Plugin) serveOnce() error {
	path := filepath.Join(v1beta1.DevicePluginPath, socket)
	kubelet, err := os.Stat(v1beta1.KubeletSocket)
	if err != nil {
		return nil // the kubelet is not up yet
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if err := register(); err != nil {
		return err
	}
	fmt.Fprintf(p.log, "gpu plugin: registered %d devices\n", len(p.ids))
	for {
		time.Sleep(lookEvery)
		now, err := os.Stat(v1beta1.KubeletSocket)
		if err != nil || !os.SameFile(now, kubelet) {
			return nil
		}
		if _, err := os.Stat(path); err != nil {
			return nil
		}
	}
}

func register() error {
	conn, err := grpc.NewClient("unix://"+v1beta1.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: socket, ResourceName: layout.GPUResource,
	})
	if err != nil {
		return fmt.Errorf("registering with the kubelet: %w", err)
	}
	return nil
}

// GetDevicePluginOptions asks for no optional calls.
func (p *Plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch sends all devices, and again whenever the health file changes.
func (p *Plugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	last := "\x00" // differs from every content
	for {
		b, err := os.ReadFile(p.health)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		if now := string(b); now != last {
			if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: Devices(p.ids, now)}); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(lookEvery):
		}
	}
}

// Allocate passes containers their devices as NVIDIA's plugin does.
func (p *Plugin) Allocate(_ context.Context, req *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	out := &v1beta1.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(c.GetDevicesIds(), ",")},
		})
	}
	return out, nil
}
