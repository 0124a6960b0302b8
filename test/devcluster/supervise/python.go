package supervise

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

const pythonProvisioner = "holdfast.dev/dev-python"

// providePython gives every claim of the Python class a read-only local
// volume of its own, all of them the same folder on all real nodes.
func providePython(ctx context.Context, c kubernetes.Interface, s *layout.Spec) {
	factory := informers.NewSharedInformerFactory(c, 0)
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()
	handle := func(obj any) {
		claim, ok := obj.(*corev1.PersistentVolumeClaim)
		if !ok || !wantsPython(claim) {
			return
		}
		_, err := c.CoreV1().PersistentVolumes().Create(ctx, PythonVolume(s, claim), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			fmt.Fprintln(os.Stderr, "supervisor: making a Python volume:", err)
		}
	}
	_, err := claims.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, obj any) { handle(obj) },
	}, 10*time.Second)
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervisor: watching claims:", err)
		return
	}
	volumes := factory.Core().V1().PersistentVolumes().Informer()
	_, err = volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			v, ok := obj.(*corev1.PersistentVolume)
			if !ok || v.Spec.StorageClassName != layout.PythonStorageClass || v.Status.Phase != corev1.VolumeReleased {
				return
			}
			err := c.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				fmt.Fprintln(os.Stderr, "supervisor: removing a Python volume:", err)
			}
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervisor: watching volumes:", err)
		return
	}
	factory.Start(ctx.Done())
}

func wantsPython(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil &&
		claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName == layout.PythonStorageClass
}

// PythonVolume is the volume made for a claim.
func PythonVolume(s *layout.Spec, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	var nodes []string
	for i := range s.Nodes {
		nodes = append(nodes, s.NodeName(i))
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "python-" + string(claim.UID)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              layout.PythonStorageClass,
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: s.PythonDir}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
			}}}},
		},
	}
}
