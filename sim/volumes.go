package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// localClass is the class of the claims.
const localClass = "local"

// claim makes claims that one pod at a time may use, several pods for each, and takes them away
// again. It begins when all servers know claims.
func (u *user) claim(ctx context.Context) {
	mode, keep := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimRetain // no directories are made here
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: localClass},
			Provisioner: model.LocalProvisioner, VolumeBindingMode: &mode, ReclaimPolicy: &keep}, metav1.CreateOptions{})
		return err
	})
	n := 0
	u.every(ctx, 5*time.Second, func() {
		n++
		name, class := fmt.Sprintf("claim-%d", n), localClass
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().PersistentVolumeClaims(space).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Mi")}}}}, metav1.CreateOptions{})
			return err
		})
		var pods []string
		for i := range 3 {
			pod := podOf(fmt.Sprintf("%s-%d", name, i), classes[u.rand.IntN(len(classes))].name, 50, 1+u.rand.IntN(5))
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			pods = append(pods, pod.Name)
			u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				_, err := c.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
		}
		pause(ctx, time.Duration(u.rand.IntN(20))*time.Second)
		for _, pod := range pods {
			u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				return unlessGone(c.CoreV1().Pods(space).Delete(ctx, pod, metav1.DeleteOptions{}))
			})
		}
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			return unlessGone(c.CoreV1().PersistentVolumeClaims(space).Delete(ctx, name, metav1.DeleteOptions{}))
		})
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			volumes, err := c.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range volumes.Items {
				if v := &volumes.Items[i]; v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Name == name && v.DeletionTimestamp == nil {
					err = errors.Join(err, unlessGone(c.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{})))
				}
			}
			return err
		})
	})
}

// claim looks at a claim that has changed: it has one volume for good, and that is its own.
func (m *mirror) claim(revision int64, old, claim *corev1.PersistentVolumeClaim) {
	name := claim.Spec.VolumeName
	if old != nil && old.UID == claim.UID && old.Spec.VolumeName != "" && old.Spec.VolumeName != name {
		m.fault(revision, "claim %s had volume %s, and has %s", claim.Name, old.Spec.VolumeName, name)
	}
	if v := m.volumes[name]; v != nil && (v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID) {
		m.fault(revision, "claim %s has volume %s, which is that of %v", claim.Name, name, v.Spec.ClaimRef)
	}
	m.alone[claim.Name] = slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod)
}

// volume looks at a volume that has changed: whose it is it stays.
func (m *mirror) volume(revision int64, old, volume *corev1.PersistentVolume) {
	if old != nil && old.UID == volume.UID && old.Spec.ClaimRef != nil && (volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != old.Spec.ClaimRef.UID) {
		m.fault(revision, "volume %s was that of claim %s, and is that of %v", volume.Name, old.Spec.ClaimRef.Name, volume.Spec.ClaimRef)
	}
	m.volumes[volume.Name] = volume
}

// usesClaims looks at a pod that gets its node: nobody else uses its claims, and their volumes are there.
func (m *mirror) usesClaims(revision int64, pod *corev1.Pod) {
	for _, name := range model.Claims(pod) {
		for _, p := range m.pods {
			if m.alone[name] && p.UID != pod.UID && p.Spec.NodeName != "" && !ended(p) && slices.Contains(model.Claims(p), name) {
				m.fault(revision, "pods %s and %s both use claim %s", pod.Name, p.Name, name)
			}
		}
		for _, v := range m.volumes {
			if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Name == name && v.DeletionTimestamp == nil && model.LocalVolumeNode(v) != pod.Spec.NodeName {
				m.fault(revision, "pod %s is bound to %s, and the volume of its claim %s is on %s", pod.Name, pod.Spec.NodeName, name, model.LocalVolumeNode(v))
			}
		}
	}
}

// unclaimed: claims that are to go are gone, and volumes. A pod that was made late, by a request that nobody
// waited for any more, keeps its claim, also when it has ended.
func unclaimed(v *fsm.View) (unsettled []string) {
	used := map[string]bool{}
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		for _, name := range model.Claims(p) {
			used[name] = used[name] || p.Spec.NodeName != ""
		}
		return true
	})
	v.Objects.Scan("", func(key string, o *fsm.Object) bool {
		switch is := o.Value.(type) {
		case *corev1.PersistentVolumeClaim:
			if is.DeletionTimestamp != nil && !used[is.Name] {
				unsettled = append(unsettled, fmt.Sprintf("%s is to go, and held by %v", key, is.Finalizers))
			}
		case *corev1.PersistentVolume:
			if of := is.Spec.ClaimRef; of != nil { // the claim may be there again, since a snapshot was restored
				if _, claimed := v.Objects.Get(fsm.ObjectKey(fsm.VolumeClaims, of.Namespace, of.Name)); claimed || used[of.Name] {
					return true
				}
			}
			if is.DeletionTimestamp != nil {
				unsettled = append(unsettled, fmt.Sprintf("%s on %s is to go, is %s and held by %v", key, model.LocalVolumeNode(is), is.Status.Phase, is.Finalizers))
			}
		}
		return true
	})
	return unsettled
}
