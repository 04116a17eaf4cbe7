package pulsar;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.runtime.AbstractFunction0;

/**
 * The data source `pulsar` for Spark's planner: each scan gets a Python data source of its own.
 *
 * Spark shares one among all scans of a relation, and with it the plan: a view is frozen at its first query,
 * filters that were pushed for one scan also hold for the others (wrong results), and the options of a table
 * in the catalog are lost. Janino, which Spark brings along, compiles this when the source is registered; it
 * has no lambdas, and generic types are left out for it. geminga/pipeline/spark/scans/provider.py tells more.
 */
public class DefaultSource implements TableProvider {
  static final String NAME = "pulsar";

  static PythonDataSourceV2 python() {
    PythonDataSourceV2 python = new PythonDataSourceV2();
    python.setShortName(NAME);
    return python;
  }

  static Table table(PythonDataSourceV2 python, StructType schema) {
    return python.getTable(schema, new Transform[0], new HashMap());
  }

  /** The one that told the columns serves the first scan: to make another takes a Python process's time. */
  private PythonDataSourceV2 asked;
  private CaseInsensitiveStringMap askedWith;

  public synchronized StructType inferSchema(CaseInsensitiveStringMap options) {
    this.asked = python();
    this.askedWith = options;
    return this.asked.inferSchema(options);
  }

  synchronized PythonDataSourceV2 forScan(CaseInsensitiveStringMap options) {
    PythonDataSourceV2 found = this.asked;
    this.asked = null;
    return found != null && options.equals(this.askedWith) ? found : python();
  }

  public boolean supportsExternalMetadata() {
    return true;
  }

  public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
    return new TopicTable(this, schema, properties);
  }
}

class TopicTable implements SupportsRead, SupportsWrite {
  private final DefaultSource source;
  private final StructType schema;
  private final Map given;

  TopicTable(DefaultSource source, StructType schema, Map given) {
    this.source = source;
    this.schema = schema;
    this.given = given;
  }

  public String name() {
    return DefaultSource.NAME;
  }

  public StructType schema() {
    return this.schema;
  }

  /** For DESCRIBE TABLE; without the options, among which credentials may be. */
  public Map properties() {
    String[] shown = new String[] {"provider", "comment", "owner"};
    Map found = new HashMap();
    for (int at = 0; at < shown.length; at++) {
      if (this.given.get(shown[at]) != null) {
        found.put(shown[at], this.given.get(shown[at]));
      }
    }
    return found;
  }

  public Set capabilities() {
    return DefaultSource.table(DefaultSource.python(), this.schema).capabilities();
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new TopicScanBuilder(this.source, this.schema, this.with(options));
  }

  public WriteBuilder newWriteBuilder(final LogicalWriteInfo info) {
    final CaseInsensitiveStringMap options = this.with(info.options());
    Table python = DefaultSource.table(DefaultSource.python(), this.schema);
    return ((SupportsWrite) python).newWriteBuilder(new LogicalWriteInfo() {
      public CaseInsensitiveStringMap options() {
        return options;
      }

      public String queryId() {
        return info.queryId();
      }

      public StructType schema() {
        return info.schema();
      }
    });
  }

  private CaseInsensitiveStringMap with(CaseInsensitiveStringMap options) {
    Map merged = new HashMap();
    merged.putAll(this.given);
    merged.putAll(options.asCaseSensitiveMap());
    return new CaseInsensitiveStringMap(merged);
  }
}

/** Filters only leave out what need not be read: Spark evaluates all of them again. */
class TopicScanBuilder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
  private final DefaultSource source;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private StructType wanted;
  private Filter[] filters = new Filter[0];

  TopicScanBuilder(DefaultSource source, StructType schema, CaseInsensitiveStringMap options) {
    this.source = source;
    this.schema = schema;
    this.options = options;
    this.wanted = schema;
  }

  public Filter[] pushFilters(Filter[] filters) {
    this.filters = filters;
    return filters;
  }

  public Filter[] pushedFilters() {
    return new Filter[0];
  }

  /** Whole columns; the cheapest one where none is wanted, as for count(*): rows have to be there. */
  public void pruneColumns(StructType required) {
    StructField[] all = this.schema.fields();
    List kept = new ArrayList();
    for (int at = 0; at < all.length; at++) {
      for (int each = 0; each < required.fields().length; each++) {
        if (required.fields()[each].name().equals(all[at].name())) {
          kept.add(all[at]);
        }
      }
    }
    if (kept.isEmpty() && all.length > 0) {
      kept.add(all[0]);
      for (int at = 0; at < all.length; at++) {
        if (all[at].name().equals("__publishTime")) {
          kept.set(0, all[at]);
        }
      }
    }
    this.wanted = new StructType((StructField[]) kept.toArray(new StructField[0]));
  }

  public Scan build() {
    if (this.filters.length == 0) {
      PythonDataSourceV2 own = this.source.forScan(this.options);
      return ((SupportsRead) DefaultSource.table(own, this.wanted)).newScanBuilder(this.options).build();
    }
    final PythonDataSourceV2 python = DefaultSource.python();
    SQLConf conf = SQLConf.get().clone();
    conf.setConfString("spark.sql.python.filterPushdown.enabled", "true");
    final StructType columns = this.wanted;
    final Filter[] pushed = this.filters;
    Map flagged = new HashMap(this.options.asCaseSensitiveMap());
    flagged.put("pushesFilters", "true");
    final CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(flagged);
    return (Scan) SQLConf.withExistingConf(conf, new AbstractFunction0() {
      public Object apply() {
        ScanBuilder builder =
            ((SupportsRead) DefaultSource.table(python, columns)).newScanBuilder(options);
        ((SupportsPushDownFilters) builder).pushFilters(pushed);
        Scan scan = builder.build();
        // planned by now, unless no filter could be told to Python: a plan made later lacks the setting
        python.getOrCreateReadInfo(DefaultSource.NAME, options, columns, false);
        return scan;
      }
    });
  }
}
