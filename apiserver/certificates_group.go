package apiserver

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	machineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/certificates"
	requests "k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"

	_ "k8s.io/kubernetes/pkg/apis/certificates/install" // into Kubernetes' scheme

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
)

// maxCertificateRequest bounds the PEM of one request: every one is kept for an hour or more.
const maxCertificateRequest = 16 << 10

// requestsOfUser, requestsOfToken and requestsOfNode are how many requests of one who asks are kept; of a node to each signer.
const requestsOfUser, requestsOfToken, requestsOfNode = 1024, 4096, 128

// certificatesGroup serves requests for certificates: who asks, who approves, and who signs
// are three, each with rights of his own.
func (g *registry) certificatesGroup() (genericapiserver.APIGroupInfo, error) {
	d := description{
		kind:     inNoNamespace(plainKind[certificates.CertificateSigningRequest, certificatesv1.CertificateSigningRequest](certificates.Resource(fsm.CertificateRequests))),
		singular: "certificatesigningrequest", shortNames: []string{"csr"}, version: certificatesv1.SchemeGroupVersion,
		list:  func() runtime.Object { return new(certificates.CertificateSigningRequestList) },
		attrs: requests.GetAttrs, table: kubernetesTable(),
	}.by(requests.Strategy)
	s, err := g.resource(plain(d))
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	return groupOf(certificatesv1.SchemeGroupVersion, map[string]rest.Storage{
		fsm.CertificateRequests:               s,
		fsm.CertificateRequests + "/status":   partOf(s, requests.StatusStrategy),
		fsm.CertificateRequests + "/approval": partOf(s, requests.ApprovalStrategy),
	}), nil
}

// certificateGuards are the admission plugins for requests for certificates: Kubernetes' own, by
// which nobody approves or signs for a signer who may not for that one, and ours.
func certificateGuards(rights authorizer.Authorizer, view func() *fsm.View) []admission.Interface {
	approving, signs := approval.NewPlugin(), signing.NewPlugin()
	approving.SetAuthorizer(rights)
	signs.SetAuthorizer(rights)
	return []admission.Interface{approving, signs, subjectrestriction.NewPlugin(), subjectGuard{view}}
}

// subjectGuard is an admission plugin: by no request does anybody become a part of Berth.
// Certificates of the cluster's authority say by their names who is a server. And by no token
// to join does anybody become a node whose machine is alive.
type subjectGuard struct{ view func() *fsm.View }

var _ admission.ValidationInterface = subjectGuard{}

// Handles implements admission.Interface.
func (subjectGuard) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (g subjectGuard) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r, ok := a.GetObject().(*certificates.CertificateSigningRequest)
	if ok && a.GetOperation() == admission.Update {
		return g.checkAnswer(a, r)
	}
	if ok && a.GetSubresource() == "" {
		if err := g.checkShare(a.GetUserInfo(), r.Spec.SignerName); err != nil {
			return err
		}
	}
	if !ok || a.GetSubresource() != "" || !strings.HasPrefix(r.Spec.SignerName, "kubernetes.io/") {
		return nil // other signers have other authorities
	}
	asked, err := certificates.ParseCSR(r.Spec.Request)
	if err != nil {
		return nil // the registry says what is wrong with it
	}
	if err := checkSubject(asked); err != nil {
		return admission.NewForbidden(a, fmt.Errorf("spec.request: %w", err))
	}
	node, ok := strings.CutPrefix(asked.Subject.CommonName, "system:node:")
	if wrong := machineryvalidation.NameIsDNSSubdomain(node, false); ok && len(wrong) > 0 {
		return admission.NewForbidden(a, fmt.Errorf("spec.request: the subject's %q is no node's: %s", asked.Subject.CommonName, strings.Join(wrong, "; ")))
	}
	if ok && slices.Contains(a.GetUserInfo().GetGroups(), access.Bootstrappers) {
		if n, ok := g.view().Nodes.Get(node); ok && isHeard(n) {
			return admission.NewForbidden(a, fmt.Errorf("spec.request: node %s is there, and its machine is alive: give this one another name, or delete the node", node))
		}
	}
	return nil
}

// checkShare: nobody keeps so many requests that others find no room for theirs. Many join by one token, and have a larger share together. A kubelet
// asks every quarter of an hour for what nobody has approved, and needs its other certificate meanwhile.
func (g subjectGuard) checkShare(who user.Info, signer string) error {
	most := requestsOfUser
	switch groups := who.GetGroups(); {
	case slices.Contains(groups, access.Masters) || isController(who):
		return nil
	case slices.Contains(groups, access.Bootstrappers):
		most = requestsOfToken
	case slices.Contains(groups, access.Nodes):
		most = requestsOfNode
	}
	n := 0
	g.view().Objects.Scan(fsm.ObjectKey(fsm.CertificateRequests, "", ""), func(_ string, o *fsm.Object) bool {
		if r, ok := o.Value.(*certificatesv1.CertificateSigningRequest); ok && r.Spec.Username == who.GetName() && (most != requestsOfNode || r.Spec.SignerName == signer) {
			n++
		}
		return n < most
	})
	if n < most {
		return nil
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("%q has asked for %d certificates whose requests are kept still, as many as one may have", who.GetName(), n), 0) // nobody waits in silence
}

// checkAnswer: who was revoked after it asked gets no certificate by that.
func (g subjectGuard) checkAnswer(a admission.Attributes, r *certificates.CertificateSigningRequest) error {
	node, ok := strings.CutPrefix(r.Spec.Username, "system:node:")
	if until, revoked := g.view().NodeRevoked(node); ok && revoked && !r.CreationTimestamp.After(until) {
		return admission.NewForbidden(a, fmt.Errorf("node %s, which has asked, is revoked", node))
	}
	return nil
}

// isHeard: a node's machine is not lost.
func isHeard(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionUnknown
		}
	}
	return false
}

func checkSubject(asked *x509.CertificateRequest) error {
	for _, name := range append([]string{asked.Subject.CommonName}, asked.Subject.Organization...) {
		if access.IsReserved(name) {
			return fmt.Errorf("the subject's %q is a name of Berth's own parts, which get their certificates by `berth tls`", name)
		}
	}
	for _, name := range asked.DNSNames {
		if pki.IsServerName(name) {
			return fmt.Errorf("the DNS name %q is that of the servers", name)
		}
	}
	if i := slices.IndexFunc(asked.IPAddresses, func(ip net.IP) bool { return ip.IsLoopback() || ip.IsUnspecified() }); i >= 0 {
		return fmt.Errorf("the address %s is everybody's", asked.IPAddresses[i])
	}
	return nil
}

// certificateRequest bounds what one request takes.
func (l *limits) certificateRequest(spec *field.Path, r *certificates.CertificateSigningRequest) {
	if len(r.Spec.Request) > maxCertificateRequest {
		l.ErrorList = append(l.ErrorList, field.TooLong(spec.Child("request"), "", maxCertificateRequest))
	}
}
