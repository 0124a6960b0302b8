package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"holdfast.dev/holdfast/test/devcluster/layout"
)

// offer is a storage class whose volumes are created here.
type offer struct {
	class, provisioner string
	// prepare creates the storage of a claim's volume and describes the volume.
	prepare func(*layout.Spec, *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error)
	// clear removes the storage of a volume that no claim uses any more.
	clear func(*layout.Spec, *corev1.PersistentVolume) error
}

func offers(s *layout.Spec) []offer {
	out := []offer{{layout.SharedStorageClass, "holdfast.dev/dev-shared", makeShared, clearShared}}
	if s.PythonDir != "" {
		out = append(out, offer{layout.PythonStorageClass, "holdfast.dev/dev-python", pythonVolume, nil})
	}
	return out
}

func (o offer) storageClass() *storagev1.StorageClass {
	now := storagev1.VolumeBindingImmediate
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: o.class}, Provisioner: o.provisioner, VolumeBindingMode: &now}
}

// provideVolumes gives every claim of an offered class its own volume and removes the volume when its claim is gone.
func provideVolumes(ctx context.Context, c kubernetes.Interface, s *layout.Spec) {
	byClass := map[string]offer{}
	for _, o := range offers(s) {
		byClass[o.class] = o
	}
	factory := informers.NewSharedInformerFactory(c, 0)
	claimed := func(obj any) {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Spec.StorageClassName != nil {
			if o, ok := byClass[*claim.Spec.StorageClassName]; ok && claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil {
				complain("making a volume", o.give(ctx, c, s, claim))
			}
		}
	}
	released := func(obj any) {
		if v, ok := obj.(*corev1.PersistentVolume); ok && v.Status.Phase == corev1.VolumeReleased && v.DeletionTimestamp == nil {
			if o, ok := byClass[v.Spec.StorageClassName]; ok {
				complain("removing a volume", o.takeBack(ctx, c, s, v))
			}
		}
	}
	for informer, do := range map[cache.SharedIndexInformer]func(any){
		factory.Core().V1().PersistentVolumeClaims().Informer(): claimed,
		factory.Core().V1().PersistentVolumes().Informer():      released,
	} {
		_, err := informer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{
			AddFunc: do, UpdateFunc: func(_, obj any) { do(obj) },
		}, 10*time.Second)
		complain("watching volumes", err)
	}
	factory.Start(ctx.Done())
}

func complain(doing string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "supervisor: %s: %v\n", doing, err)
	}
}

func (o offer) give(ctx context.Context, c kubernetes.Interface, s *layout.Spec, claim *corev1.PersistentVolumeClaim) error {
	v, err := o.prepare(s, claim)
	if err != nil {
		return err
	}
	if _, err := c.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (o offer) takeBack(ctx context.Context, c kubernetes.Interface, s *layout.Spec, v *corev1.PersistentVolume) error {
	if o.clear != nil {
		if err := o.clear(s, v); err != nil {
			return err
		}
	}
	if err := c.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// volumeFor returns a volume that is bound to one claim and usable on all real nodes.
func volumeFor(
	s *layout.Spec,
	claim *corev1.PersistentVolumeClaim,
	name string,
	source corev1.PersistentVolumeSource,
) *corev1.PersistentVolume {
	var nodes []string
	for i := range s.Nodes {
		nodes = append(nodes, s.NodeName(i))
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, // clear removes it
			StorageClassName:              *claim.Spec.StorageClassName,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1",
				Kind:       "PersistentVolumeClaim",
				Namespace:  claim.Namespace,
				Name:       claim.Name,
				UID:        claim.UID,
			},
			PersistentVolumeSource: source,
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
			}}}},
		},
	}
}

// pythonVolume is the same read-only folder for every claim.
func pythonVolume(s *layout.Spec, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	v := volumeFor(s, claim, "python-"+string(claim.UID), corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: s.PythonDir}})
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")}
	return v, nil
}

// makeShared creates an empty folder that all nodes share. The volume is a host path, not a local one: as with a network file system, the
// kubelet then changes no owners below it, which would fail if another pod removes a file at that moment.
func makeShared(s *layout.Spec, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	name := "shared-" + string(claim.UID)
	dir := s.Shared(name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := os.Chmod(dir, 0o777); err != nil { // any user of any pod may write, whatever the umask is
		return nil, err
	}
	must := corev1.HostPathDirectory
	v := volumeFor(
		s,
		claim,
		name,
		corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(layout.SharedDir, name), Type: &must}},
	)
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]}
	return v, nil
}

func clearShared(s *layout.Spec, v *corev1.PersistentVolume) error {
	return os.RemoveAll(s.Shared(v.Name))
}
