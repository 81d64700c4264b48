package sim

import (
	"context"
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// rightOutlives is for how long a right may be believed that has ended: a server may
// have asked the others a moment before, and hears of nobody since.
const rightOutlives = 10 * time.Second

// grant gives a user without rights one, by a binding of a role, and takes it away, again and again. The
// right is there with the answer, at every server, and some seconds after its end at none.
func (u *user) grant(ctx context.Context, ward *user) {
	if u.world.config.Earlier {
		return // before there are roles everybody may do everything
	}
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.RbacV1().Roles(space).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}}, metav1.CreateOptions{})
		return err
	})
	n := 0
	u.every(ctx, 5*time.Second, func() {
		n++
		name := fmt.Sprintf("ward-%d", n)
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.RbacV1().RoleBindings(space).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: ward.name}}}, metav1.CreateOptions{})
			return err
		})
		if ctx.Err() != nil {
			return
		}
		for i, m := range u.world.servers {
			if err := ward.secrets(ctx, i); apierrors.IsForbidden(err) { // one that hears of nobody says that it cannot tell
				u.world.checker.contradicted("user %s may list secrets, and server %s says no: %v", ward.name, m.name, err)
			}
		}
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			err := c.RbacV1().RoleBindings(space).Delete(ctx, name, metav1.DeleteOptions{})
			return unlessGone(err)
		})
		pause(ctx, rightOutlives)
		if ctx.Err() != nil || u.bindings(ctx) != 0 {
			return
		}
		var allow []string
		for i, m := range u.world.servers {
			if ward.secrets(ctx, i) == nil {
				allow = append(allow, m.name)
			}
		}
		// What was asked for twice may be done late: then there is a binding again.
		if len(allow) > 0 && u.bindings(ctx) == 0 {
			u.world.checker.contradicted("user %s may not list secrets since %s, and servers %v let it", ward.name, rightOutlives, allow)
		}
	})
}

// bindings is how many there are; -1: nobody says so.
func (u *user) bindings(ctx context.Context) (n int) {
	err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		have, err := c.RbacV1().RoleBindings(space).List(ctx, metav1.ListOptions{})
		if err == nil {
			n = len(have.Items)
		}
		return err
	})
	if err != nil {
		return -1
	}
	return n
}

func (u *user) secrets(ctx context.Context, server int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := u.clients[server].CoreV1().Secrets(space).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}
