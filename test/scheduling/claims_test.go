package scheduling

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"holdfast.dev/holdfast/api/v1alpha1"
)

const (
	driver = "gpu.example.com"
	// backed is an extended resource that no node has; a device class provides it.
	backed = "gpu.example.com/whole"
)

// oneDevice is a claim for one device.
var oneDevice = resourcev1.ResourceClaimSpec{
	Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "device", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: driver}}},
	},
}

// claimed: the GPUs of pods are devices of resource claims (dynamic resource allocation). One of four nodes has a tainted device, which is
// used only after the taint is removed.
func claimed(s *stage) {
	s.plain(4)
	api := s.client.ResourceV1()
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To(backed),
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}}},
	}
	if _, err := api.DeviceClasses().Create(s.ctx, class, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	template := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "device"},
		Spec: resourcev1.ResourceClaimTemplateSpec{
			Spec: oneDevice},
	}
	if _, err := api.ResourceClaimTemplates("default").Create(s.ctx, template, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	var tainted *resourcev1.ResourceSlice
	for i := range 4 {
		node := fmt.Sprintf("plain-%d-%d", s.plains, i)
		slice := &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "devices-" + node},
			Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node,
				Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "d0"}}},
		}
		if i == 1 {
			slice.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "example.com/xid", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
		made, err := api.ResourceSlices().Create(s.ctx, slice, metav1.CreateOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		if i == 1 {
			tainted = made
		}
	}
	s.t.Cleanup(func() {
		if err := api.ResourceSlices().DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			s.t.Error(err)
		}
		if err := api.DeviceClasses().Delete(s.ctx, driver, metav1.DeleteOptions{}); err != nil {
			s.t.Error(err)
		}
	})
	byClaim := func(p *corev1.Pod) {
		onPlain(p)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "device"}}}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: ptr.To("device")}}
	}
	four := s.ranked("four", 4, byClaim)
	s.until("four to be refused, as one device is tainted", s.saying(four[0], "4 pods wanted, 3 fit"))
	if s.onNodes("four") > 0 {
		s.t.Error("a part of a gang was placed")
	}
	tainted.Spec.Devices[0].Taints = nil
	tainted.Spec.Pool.Generation++
	if _, err := api.ResourceSlices().Update(s.ctx, tainted, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.until("all four to be placed", s.bound(four...))
	s.devicesAreTheirs(4)
	late := s.ranked("late", 1, byClaim)
	s.until("a fifth to be refused with the reason, without preemption", func() bool {
		return s.saying(late[0], "refused by DynamicResources")() && s.saying(late[0], "devices of resource claims are neither preempted nor reserved")()
	})
	s.end(four[0])
	s.until("it to get the device that is given back", s.bound(late...))
	s.clear()
	s.until("the claims to be gone", s.noClaims)
	s.givenBack()
	extended := func(p *corev1.Pod) {
		onPlain(p)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{backed: resource.MustParse("1")}}
	}
	one := member("extended", 0, 3, "extended-0")
	extended(one)
	s.create(one)
	one = s.pods()[one.Name]
	s.leftOver(
		"extended-left",
		fmt.Sprintf("plain-%d-0", s.plains),
		func(c *resourcev1.ResourceClaim) { // the state that a scheduler leaves if it ends between the claim and the binding
			c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: one.Name, UID: one.UID, Controller: ptr.To(true)}}
		},
	)
	for slot := range 2 {
		p := member("extended", slot+1, 3, fmt.Sprintf("extended-%d", slot+1))
		extended(p)
		s.create(p)
	}
	s.until("pods that ask for an extended resource of the class to be placed", s.bound("extended-0", "extended-1", "extended-2"))
	s.devicesAreTheirs(3)
}

// givenBack: a member whose claim has a device of a cordoned node moves to another node, together with its gang.
func (s *stage) givenBack() {
	s.t.Helper()
	node := fmt.Sprintf("plain-%d-0", s.plains)
	s.taint(node, corev1.Taint{Key: v1alpha1.TaintUnhealthy, Value: "Test", Effect: corev1.TaintEffectNoSchedule})
	claims := []string{"left-0", "left-1"}
	s.leftOver(claims[0], node, nil)
	s.leftOver(claims[1], "", nil)
	left := s.ranked("left", 2, func(p *corev1.Pod) {
		onPlain(p)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "device"}}}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To(p.Name)}}
	})
	s.until("the gang to be placed elsewhere", s.bound(left...))
	s.devicesAreTheirs(2)
	s.taint(node)
	s.clear()
	for _, c := range claims {
		if err := s.client.ResourceV1().ResourceClaims("default").Delete(s.ctx, c, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	s.until("the claims to be gone", s.noClaims)
}

// leftOver creates a claim. If a node is named, the claim already has that node's device.
func (s *stage) leftOver(name, node string, change func(*resourcev1.ResourceClaim)) {
	s.t.Helper()
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: []string{resourcev1.Finalizer}},
		Spec:       oneDevice,
	}
	if change != nil {
		change(claim)
	}
	api := s.client.ResourceV1().ResourceClaims("default")
	made, err := api.Create(s.ctx, claim, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if node == "" {
		return
	}
	made.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "device", Driver: driver, Pool: node, Device: "d0"}},
		},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}},
	}
	if _, err := api.UpdateStatus(s.ctx, made, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// taint sets the taints of a node.
func (s *stage) taint(name string, taints ...corev1.Taint) {
	s.t.Helper()
	s.until("the node to have its taints", func() bool {
		node, err := s.client.CoreV1().Nodes().Get(s.ctx, name, metav1.GetOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		node.Spec.Taints = taints
		_, err = s.client.CoreV1().Nodes().Update(s.ctx, node, metav1.UpdateOptions{})
		return err == nil
	})
}

func (s *stage) noClaims() bool {
	list, err := s.client.ResourceV1().ResourceClaims("default").List(s.ctx, metav1.ListOptions{})
	return err == nil && len(list.Items) == 0
}

// devicesAreTheirs checks that n claims have devices, each on its pod's node, and that no device is allocated twice.
func (s *stage) devicesAreTheirs(n int) {
	s.t.Helper()
	list, err := s.client.ResourceV1().ResourceClaims("default").List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	pods, pools := s.pods(), []string{}
	for _, c := range list.Items {
		if c.Status.Allocation == nil {
			continue
		}
		at := pods[c.Status.ReservedFor[0].Name].Spec.NodeName
		pool := c.Status.Allocation.Devices.Results[0].Pool
		if pool != at {
			s.t.Errorf("claim %s of a pod on %s has a device of %s", c.Name, at, pool)
		}
		pools = append(pools, pool)
	}
	slices.Sort(pools)
	if len(slices.Compact(slices.Clone(pools))) != n || len(pools) != n {
		s.t.Errorf("devices in use: %s, %d are wanted", strings.Join(pools, " "), n)
	}
}
