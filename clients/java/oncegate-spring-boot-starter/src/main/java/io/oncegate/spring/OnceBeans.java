package io.oncegate.spring;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.MethodIntrospector.MetadataLookup;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.AnnotationUtils;
import org.springframework.util.ClassUtils;

/** Checks {@link Once} methods when their bean is made, so that a mistake ends the start. */
final class OnceBeans implements BeanPostProcessor {
    @Override
    public Object postProcessBeforeInitialization(Object bean, String name) {
        Class<?> type = ClassUtils.getUserClass(bean);
        if (AnnotationUtils.isCandidateClass(type, Once.class)) {
            MetadataLookup<Once> find =
                    method -> AnnotatedElementUtils.findMergedAnnotation(method, Once.class);
            MethodIntrospector.selectMethods(type, find).forEach(OnceBeans::check);
        }
        return bean;
    }

    private static void check(Method method, Once once) {
        int modifiers = method.getModifiers();
        if (Modifier.isPrivate(modifiers)
                || Modifier.isStatic(modifiers)
                || Modifier.isFinal(modifiers)) {
            throw new IllegalStateException(
                    "@Once on "
                            + method
                            + " has no effect: a proxy cannot override a private, static or final"
                            + " method; make it a public one");
        }
        new OnceMethod(method, once);
    }
}
