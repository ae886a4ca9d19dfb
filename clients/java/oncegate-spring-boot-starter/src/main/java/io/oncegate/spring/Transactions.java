package io.oncegate.spring;

import org.springframework.test.context.transaction.TestTransaction;
import org.springframework.transaction.NoTransactionException;
import org.springframework.transaction.interceptor.TransactionAspectSupport;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.util.ClassUtils;

/** Transactions of Spring on the calling thread. */
final class Transactions {
    private static final boolean EXIST =
            isPresent("org.springframework.transaction.support.TransactionSynchronizationManager");
    private static final boolean ARE_TESTED =
            isPresent("org.springframework.test.context.transaction.TestTransaction");

    private Transactions() {}

    /** Returns true inside a transaction, but for the one that a test has begun around the code. */
    static boolean isInside() {
        return EXIST
                && TransactionSynchronizationManager.isActualTransactionActive()
                && !(ARE_TESTED && OfTest.isCurrent());
    }

    private static boolean isPresent(String name) {
        return ClassUtils.isPresent(name, Transactions.class.getClassLoader());
    }

    /** A class of its own: it can only be loaded with those of transactions. */
    private static final class OfTest {
        static boolean isCurrent() {
            return TestTransaction.isActive() && !isOfMethod() && isNamedByTest();
        }

        /** Returns true in a method with {@code @Transactional}, also if it joins the test's. */
        private static boolean isOfMethod() {
            try {
                TransactionAspectSupport.currentTransactionStatus();
                return true;
            } catch (NoTransactionException none) {
                return false;
            }
        }

        /** That of a test has the name of its method; a {@code TransactionTemplate} has none. */
        private static boolean isNamedByTest() {
            String name = TransactionSynchronizationManager.getCurrentTransactionName();
            int end = name == null ? -1 : name.lastIndexOf('.');
            return end > 0 && isPresent(name.substring(0, end));
        }
    }
}
