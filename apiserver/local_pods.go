package apiserver

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/fsm"
)

// LocalPods writes pods for a part of this process that writes many, as localWriter says.
type LocalPods struct{ localWriter }

// LocalPods is that for whom Local would make requests; nil if each has to be one, because an account is kept of them.
func (s *Server) LocalPods(name string, groups ...string) *LocalPods {
	if s.trail != nil {
		return nil
	}
	return &LocalPods{localWriter{s, &user.DefaultInfo{Name: name, Groups: groups}}}
}

// Create makes a pod, and gives it as it is stored.
func (p *LocalPods) Create(ctx context.Context, namespace string, in *corev1.Pod) (out *corev1.Pod, err error) {
	err = p.do(ctx, podWrite(namespace, "", "create"), func(ctx context.Context) (err error) {
		out, err = createLocally[core.Pod](ctx, &p.localWriter, p.server.pods, localPod, namespace, in.DeepCopy())
		return err
	})
	return out, err
}

var localPod = localKind{corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods"), ""}

// podWrite is what is asked of the rights of whoever writes a pod.
func podWrite(namespace, name, verb string) authorizer.AttributesRecord {
	return localPod.write(namespace, name, verb)
}

// RemoveFinalizers takes finalizers off a pod; done is false, and nothing is, where that has to be a request: somebody may have to be asked
// about it, or a server would not know the command.
func (p *LocalPods) RemoveFinalizers(ctx context.Context, namespace, name string, finalizers []string) (out *corev1.Pod, done bool, err error) {
	if v := p.server.config.Backend.View(); v.Version() < fsm.SinceRelease || asksAboutPods(v, admissionv1.Update) {
		return nil, false, nil
	}
	err = p.do(ctx, podWrite(namespace, name, "patch"), func(ctx context.Context) error {
		result, err := propose(ctx, p.server.config.Backend, &fsm.ReleasePod{Key: fsm.PodKey(namespace, name), Finalizers: finalizers})
		out, _ = result.Object.(*corev1.Pod) // as it is stored: nobody changes it
		return err
	})
	return out, true, err
}
