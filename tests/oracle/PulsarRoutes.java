import java.io.File;
import java.lang.annotation.Annotation;
import java.lang.reflect.Method;
import java.lang.reflect.Parameter;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.jar.JarFile;
import javax.ws.rs.HttpMethod;
import javax.ws.rs.QueryParam;
import org.glassfish.jersey.media.multipart.FormDataParam;

/**
 * Prints every method and path of a Pulsar broker's admin API, read from the annotations of its classes.
 *
 * <pre>java -cp 'DIRECTORY_OF_JARS/*' tests/oracle/PulsarRoutes.java DIRECTORY_OF_JARS &gt; tests/oracle/routes.tsv</pre>
 *
 * Columns: class, HTTP method, path, query parameters (with commas), type of the body or `-`. The order is that of
 * the text of the line, so that two versions of Pulsar may be compared with diff.
 */
public class PulsarRoutes {
    /** Where the broker hangs each package, as its PulsarService does. */
    static final TreeMap<String, String> ROOTS = new TreeMap<>(java.util.Map.of(
            "org.apache.pulsar.broker.admin.v2.", "/admin/v2",
            "org.apache.pulsar.broker.admin.v3.", "/admin/v3",
            "org.apache.pulsar.broker.lookup.v2.", "/lookup",
            "org.apache.pulsar.broker.rest.", "/topics"));

    public static void main(String[] arguments) throws Exception {
        var out = System.out;
        System.setOut(System.err);
        TreeSet<String> rows = new TreeSet<>();
        for (File jar : Path.of(arguments[0]).toFile().listFiles()) {
            if (!jar.getName().startsWith("pulsar-broker-") || !jar.getName().endsWith(".jar")) {
                continue;
            }
            try (JarFile file = new JarFile(jar)) {
                for (var entry : (Iterable<java.util.jar.JarEntry>) file.stream()::iterator) {
                    String name = entry.getName().replace('/', '.');
                    var root = ROOTS.floorEntry(name);
                    if (name.endsWith(".class") && root != null && name.startsWith(root.getKey())) {
                        routesOf(Class.forName(name.substring(0, name.length() - 6)), root.getValue(), rows);
                    }
                }
            }
        }
        out.println("# Pulsar " + versionOf(arguments[0]) + ": class, method, path, query parameters, type of the body");
        rows.forEach(row -> out.print(row + "\n"));
        out.flush();
        System.exit(0);
    }

    static String versionOf(String jars) {
        for (String name : Path.of(jars).toFile().list()) {
            if (name.matches("pulsar-broker-\\d.*\\.jar")) {
                return name.substring("pulsar-broker-".length(), name.length() - ".jar".length());
            }
        }
        throw new IllegalArgumentException("no pulsar-broker-VERSION.jar in " + jars);
    }

    static void routesOf(Class<?> resource, String root, TreeSet<String> rows) {
        var base = resource.getAnnotation(javax.ws.rs.Path.class);
        if (base == null) {
            return;
        }
        for (Method method : resource.getMethods()) {
            String verb = verbOf(method);
            if (verb == null || method.isBridge()) {
                continue;
            }
            var rest = method.getAnnotation(javax.ws.rs.Path.class);
            String path = root + slash(base.value()) + (rest == null ? "" : slash(rest.value()));
            rows.add(String.join("\t", resource.getSimpleName(), verb, path, queryOf(method), bodyOf(method)));
        }
    }

    static String slash(String path) {
        String stripped = path.replaceAll("^/+|/+$", "");
        return stripped.isEmpty() ? "" : "/" + stripped;
    }

    static String verbOf(Method method) {
        for (Annotation annotation : method.getAnnotations()) {
            var http = annotation.annotationType().getAnnotation(HttpMethod.class);
            if (http != null) {
                return http.value();
            }
        }
        return null;
    }

    static String queryOf(Method method) {
        TreeSet<String> names = new TreeSet<>();
        for (Parameter parameter : method.getParameters()) {
            var query = parameter.getAnnotation(QueryParam.class);
            if (query != null) {
                names.add(query.value() + ":" + parameter.getType().getSimpleName());
            }
        }
        return names.isEmpty() ? "-" : String.join(",", names);
    }

    /** The parameter without an annotation of its own is the entity; parts of a form are listed. */
    static String bodyOf(Method method) {
        TreeSet<String> parts = new TreeSet<>();
        for (Parameter parameter : method.getParameters()) {
            List<Annotation> annotations = Arrays.asList(parameter.getAnnotations());
            if (parameter.isAnnotationPresent(FormDataParam.class)) {
                parts.add("form:" + parameter.getAnnotation(FormDataParam.class).value());
            } else if (annotations.stream().noneMatch(a -> a.annotationType().getName().startsWith("javax.ws.rs"))) {
                parts.add(parameter.getParameterizedType().getTypeName().replaceAll("(\\w+\\.)+", "").replace('$', '.'));
            }
        }
        return parts.isEmpty() ? "-" : String.join(",", parts);
    }
}
