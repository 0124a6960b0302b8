// Package simnode describes simulated nodes: Node objects without a machine. Kwok (sigs.k8s.io/kwok) renews their
// leases, sets pods to Running as soon as they are bound to them, and removes pods when they are deleted. Simulated
// nodes are for tests with many nodes.
package simnode

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	nodestage "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	podstage "sigs.k8s.io/kwok/kustomize/stage/pod/fast"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

const (
	makers = 16
	// leaseSeconds is the kubelet's default. Kwok renews a lease four times as often, as a kubelet does.
	leaseSeconds = 40
)

// Make creates all Node objects.
func Make(ctx context.Context, c kubernetes.Interface, s *layout.Spec) error {
	return each(s.Sim.Nodes, makers, func(i int) error {
		_, err := c.CoreV1().Nodes().Create(ctx, Node(s, i, time.Now()), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// each calls do for 0 to n-1, some at a time, and returns the first error.
func each(n, parallel int, do func(int) error) error {
	var wg sync.WaitGroup
	next := make(chan int)
	errs := make(chan error, parallel)
	for range parallel {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	close(errs)
	return <-errs
}

// KwokArgs are the arguments of a kwok that simulates a cluster's nodes with the given configuration.
func KwokArgs(s *layout.Spec, config string) []string {
	return []string{
		"--config=" + config, "--kubeconfig=" + s.Kubeconfig(), "--manage-nodes-with-label-selector=" + AliveLabel + "=true",
		fmt.Sprintf("--node-lease-duration-seconds=%d", leaseSeconds), fmt.Sprintf("--cidr=10.%d.64.1/18", s.Octet), "--node-ip=" + s.ControlIP(),
		"--v=WARN", // a line for every renewal would be 100 MB an hour
	}
}

// KwokConfig is kwok's configuration: initialise nodes, start and delete pods. It has no stage that completes a Job's pods: training goes
// on.
func KwokConfig() (string, error) {
	options, err := json.Marshal(map[string]any{
		"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration",
		"options": map[string]any{"podPlayStageParallelism": 32, "nodePlayStageParallelism": 8, "nodeLeaseParallelism": 16, "podsOnNodeSyncParallelism": 8},
	})
	if err != nil {
		return "", err
	}
	return strings.Join([]string{string(options), nodestage.DefaultNodeInit, podstage.DefaultPodReady, podstage.DefaultPodDelete}, "\n---\n"), nil
}

// Leases counts the nodes that kwok has taken over.
func Leases(ctx context.Context, c kubernetes.Interface, s *layout.Spec) (int, error) {
	list, err := c.CoordinationV1().Leases("kube-node-lease").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	prefix, n := strings.TrimSuffix(s.SimNodeName(0), "0001"), 0
	for _, l := range list.Items {
		if strings.HasPrefix(l.Name, prefix) {
			n++
		}
	}
	return n, nil
}
