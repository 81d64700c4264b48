package apiserver

import (
	"context"
	"runtime"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/apis/coordination"

	"github.com/berth-dev/berth/access"
)

// DefaultMaxRequests is how many requests are worked on at a time by one server: as many as by Kubernetes', if it has four
// processors.
func DefaultMaxRequests() int {
	const most, ofEach = 600, 150
	return min(most, ofEach*runtime.GOMAXPROCS(0))
}

// flowUser is who says of schemas whether their levels are there.
const flowUser = "system:controller:api-priority-and-fairness-config-consumer-v1"

// flowControl is Kubernetes' priority and fairness: whose requests are answered when not all can be. It comes before the
// bounds of bytes (fairShare), which hold for everybody.
type flowControl struct {
	flowcontrol.Interface
	shares *userShare
	pace   *pace
}

// newFlowControl goes by the schemas and levels that informers show. As long as there are none, all share one level.
func newFlowControl(factory clientinformers.SharedInformerFactory, client kubernetes.Interface, most int, speed *pace) flowControl {
	metrics.Register()
	return flowControl{flowcontrol.New(factory, client.FlowcontrolV1(), most), newUserShare(most), speed}
}

// Handle implements flowcontrol.Interface. What the leader's own controllers ask waits for nobody: others wait
// for what they do. Mirrors of static pods are made among what nodes ask.
func (f flowControl) Handle(ctx context.Context, digest flowcontrol.RequestDigest,
	note func(fs *flowcontrolv1.FlowSchema, pl *flowcontrolv1.PriorityLevelConfiguration, distinguisher string),
	work func() flowrequest.WorkEstimate, queue fairqueuing.QueueNoteFn, exec func(),
) {
	for part, counts := range map[string]string{access.Controllers: access.Masters, access.Mirrors: access.Nodes} {
		if groups := digest.User.GetGroups(); slices.Contains(groups, part) {
			digest.User = &user.DefaultInfo{Name: digest.User.GetName(), UID: digest.User.GetUID(), Groups: append(slices.Clone(groups), counts)}
		}
	}
	if !slices.Contains(digest.User.GetGroups(), access.Masters) {
		end, err := f.begin(ctx, digest.User.GetName(), digest.RequestInfo)
		if err != nil {
			exec = func() {} // it is noted what it would have been, and refused
		} else {
			defer end()
		}
	} else if own := isController(digest.User) || digest.User.GetName() == admissionUser; !own && counts(digest.User.GetName(), digest.RequestInfo) {
		f.pace.ask(digest.User.GetName())
	}
	f.Interface.Handle(ctx, digest, note, work, queue, exec)
}

// begin waits until a user may have one request more at work, and owes nothing for an object that was dear, and gives what ends it. An error is the context's. Who asks for more at a
// time than he may, or with long selectors, has his requests begun no faster than his account allows (pace).
func (f flowControl) begin(ctx context.Context, user string, info *request.RequestInfo) (end func(), err error) {
	costs := costsOf(info)
	if counts(user, info) {
		f.pace.ask(user)
	}
	crowded, end, err := f.shares.begin(ctx, user, info)
	if err == nil && !isLease(info) {
		if err = f.pace.pay(ctx, user); err != nil {
			end()
		}
	}
	long := selectorCosts(info)
	if err != nil || !crowded && long == 0 {
		return end, err
	}
	costs += long
	if err := f.pace.take(ctx, user, costs); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// isLease: who does not renew one in time is taken for lost.
func isLease(info *request.RequestInfo) bool {
	return info.APIGroup == coordination.GroupName && info.Resource == "leases"
}

// counts says whether a request is one for which others may have to wait: a short one of somebody who is known, for objects.
func counts(who string, info *request.RequestInfo) bool {
	everywhere := (info.Verb == "list" || info.Verb == "watch") && info.Namespace == ""
	return info.IsResourceRequest && !everywhere && !isPlan(info) && who != user.Anonymous
}

// costsOf is what a short request costs, and what one costs that may be long before it is known whether it is: then it is charged for its
// rows, too (turn). Of a plan it is nothing, since it is charged as it is planned (planTurn).
func costsOf(info *request.RequestInfo) time.Duration {
	switch {
	case !info.IsResourceRequest:
		return readCosts
	case isPlan(info):
		return 0
	case info.Verb == "get", info.Verb == "list", info.Verb == "watch":
		return readCosts
	}
	return writeCosts
}
